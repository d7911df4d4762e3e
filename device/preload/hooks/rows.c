// SPDX-License-Identifier: Apache-2.0
#include "preload/hooks/rows.h"

#include "preload/hooks/elf.h"

static int is_same(const struct ml_hooked *old, const struct ml_hooked *new)
{
	return old->module == new->module && old->n_slots == new->n_slots && old->n_refused == new->n_refused &&
	       old->n_foreign == new->n_foreign && old->flags == new->flags && ml_elf_is_name(old->name, new->name);
}

void ml_hook_rows_add(const struct ml_view *view, const struct ml_hooked *row)
{
	struct ml_segment *segment = view ? view->segment : NULL;
	ml_u32 n = segment ? segment->n_hooked : 0;

	/* Of a library that is brought in again and again, the first time is told. */
	for (ml_u32 i = 0; i < n && i < ML_HOOKED_MAX; i++)
		if (is_same(&view->hooked[i], row))
			return;
	if (segment && n >= ML_HOOKED_MAX)
		segment->n_hooked_lost++;
	else if (segment) {
		view->hooked[n] = *row;
		__atomic_store_n(&segment->n_hooked, n + 1, __ATOMIC_RELEASE);
	}
}

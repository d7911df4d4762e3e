// SPDX-License-Identifier: Apache-2.0
#include "preload/segment/keys.h"

/* Index of a new entry, or 0. Failed attempts may raise the count beyond n_keys. */
static ml_u32 new_entry(const struct ml_view *view, ml_u64 key)
{
	ml_u32 *used = &view->segment->n_keys_used;
	ml_u32 number;

	if (__atomic_load_n(used, __ATOMIC_RELAXED) >= view->settings.n_keys)
		return 0;
	number = __atomic_fetch_add(used, 1, __ATOMIC_RELAXED);
	if (number >= view->settings.n_keys)
		return 0;
	ml_write(&view->keys[number].next_due, 1);
	ml_write(&view->keys[number].next_verify, 2);
	__atomic_store_n(&view->keys[number].key, key, __ATOMIC_RELEASE);
	return number;
}

ml_u32 ml_keys_find(const struct ml_view *view, ml_u64 key)
{
	ml_u32 fresh = 0;

	for (ml_u32 i = 0; i < ML_KEY_PROBES; i++) {
		ml_u32 *slot = &view->key_index[ml_key_slot(&view->settings, key, i)];
		ml_u32 number = __atomic_load_n(slot, __ATOMIC_ACQUIRE);

		if (!number) {
			if (!fresh && !(fresh = new_entry(view, key)))
				return 0;
			/* If another thread fills the slot first, `number` is its entry. */
			if (__atomic_compare_exchange_n(slot, &number, fresh, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
				return fresh;
		}
		if (view->keys[number].key == key)
			return number;
	}
	return 0;
}

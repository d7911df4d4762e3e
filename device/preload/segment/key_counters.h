/* SPDX-License-Identifier: Apache-2.0 */
/* What is counted of each key. number: of its entry. */
#ifndef MEMLEAK_KEY_COUNTERS_H
#define MEMLEAK_KEY_COUNTERS_H

#include "preload/segment/peak.h"

static inline void ml_key_count_alloc(const struct ml_view *view, ml_u32 number, ml_u64 size)
{
	struct ml_key *key = &view->keys[number];

	ml_peak_see(view, number);
	ml_add(&key->alloc_objects, 1);
	ml_add(&key->alloc_bytes, size);
	ml_peak_add(view, size);
}

static inline void ml_key_count_free(const struct ml_view *view, ml_u32 number, ml_u64 size)
{
	struct ml_key *key = &view->keys[number];

	ml_peak_see(view, number);
	ml_add(&key->free_objects, 1);
	ml_add(&key->free_bytes, size);
	ml_peak_take(view, size);
}

#endif

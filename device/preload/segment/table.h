/* SPDX-License-Identifier: Apache-2.0 */
/* The live table: address → what is known of the block there. Lock free; safe in signal handlers. thread: the caller's. */
#pragma once

#include "preload/segment/segment.h"

enum ml_table_result {
	ML_TABLE_INSERTED,
	ML_TABLE_REPLACED, /* the address was seen to be live: its free was not noticed; *old is what it was */
	ML_TABLE_FULL,
};

/*
 * place: what ml_table_expect() of the address has returned, or NULL. A block without a sequence number gets one, also
 * where the table is full. Of *old only size and key_index are sure to be set.
 */
enum ml_table_result ml_table_insert(const struct ml_view *view, struct ml_thread *thread, ml_u64 *shadow,
				     ml_u64 address, struct ml_entry *entry, struct ml_entry *old);

/* Takes the block out of the table. 1 and *entry, or 0 when the address is not in it. */
int ml_table_claim(const struct ml_view *view, struct ml_thread *thread, ml_u64 address, struct ml_entry *entry);

/* The same for a block that will not be given back: of *entry only size and key_index are set. */
int ml_table_remove(const struct ml_view *view, struct ml_thread *thread, ml_u64 address, struct ml_entry *entry);

/* The address will be inserted soon: its place, where there is one already, may come from memory meanwhile. */
ml_u64 *ml_table_expect(const struct ml_view *view, ml_u64 address);

/* With sampling: 1 when the block is not in the table for sure. */
static inline int ml_table_excludes(const struct ml_view *view, ml_u64 address)
{
	return !__atomic_load_n(&view->filter[ml_filter_slot(address)], __ATOMIC_RELAXED);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The live table: address → block. Lock-free and safe in signal handlers. thread: the caller's. */
#pragma once

#include "preload/segment/segment.h"

enum ml_table_result {
	ML_TABLE_INSERTED,
	ML_TABLE_REPLACED, /* a block was live at the address, so its free was missed; it is *old */
	ML_TABLE_FULL,
};

/*
 * shadow: the result of ml_table_expect(), or NULL. The block gets a sequence number if it has none, even if the table
 * is full. In *old only size and key_index are always set.
 */
enum ml_table_result ml_table_insert(const struct ml_view *view, struct ml_thread *thread, ml_u64 *shadow, ml_u64 address,
				     struct ml_entry *entry, struct ml_entry *old);

/* Takes the block out of the table. Returns 0 if the address is not in it. */
int ml_table_claim(const struct ml_view *view, struct ml_thread *thread, ml_u64 address, struct ml_entry *entry);

/* For a block that will not be put back: sets only size and key_index. */
int ml_table_remove(const struct ml_view *view, struct ml_thread *thread, ml_u64 address, struct ml_entry *entry);

/* Prefetches the word of an address that will be inserted soon, and returns it if there is one. */
ml_u64 *ml_table_expect(const struct ml_view *view, ml_u64 address);

/* With sampling: 1 if the block is certainly not in the table. */
static inline int ml_table_excludes(const struct ml_view *view, ml_u64 address)
{
	return !__atomic_load_n(&view->filter[ml_filter_slot(address)], __ATOMIC_RELAXED);
}

/* The slot's address, 0: it is free. The entry belongs to the address if that is the same before and after the entry is read. */
static inline ml_u64 ml_slot_read(const struct ml_segment *segment, const struct ml_slot *slot, struct ml_entry *entry)
{
	ml_u64 address = __atomic_load_n(&slot->address, __ATOMIC_ACQUIRE);

	if (address <= ML_SLOT_CLAIMED)
		return 0;
	*entry = ml_slot_unpack(segment, slot);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&slot->address, __ATOMIC_RELAXED) == address ? address : 0;
}

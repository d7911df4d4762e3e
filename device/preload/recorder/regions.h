/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The region ledger's side in the target: each successful call of the mmap family becomes an event, in the order of
 * the thread's calls; the agent keeps the ledger. Nothing of it is in the table, and nothing in the keys. All functions
 * are async-signal safe and leave errno alone.
 */
#pragma once

#include "preload/freestanding/registers.h"

struct ml_region_call {
	enum ml_function function;
	ml_u64 address; /* of the region as it is now */
	ml_u64 size;
	ml_u64 old_address; /* of mremap(), else 0 */
	const struct ml_registers *registers;
};

/*
 * 1 when the call is to be told: regions are followed, and its caller is not the allocator, whose own mappings hold the
 * blocks that are recorded already. To be asked before the real call.
 */
int ml_regions_take(ml_u64 return_address);

/*
 * Two threads see the address space change in one order when what gives memory back bears the time before the real
 * call and what takes memory the time after it: another thread can only get the range in between.
 */
ml_u64 ml_regions_now(void);
void ml_regions_unmapped(ml_u64 address, ml_u64 size, ml_u64 before_ns);
void ml_regions_mapped(const struct ml_region_call *call);

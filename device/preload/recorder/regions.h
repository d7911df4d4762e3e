/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The target's side of the region ledger: each successful call of the mmap family is sent as an event, in the order of
 * the thread's calls. The agent keeps the ledger; tables and keys are not involved. All functions are async-signal safe
 * and leave errno alone.
 */
#pragma once

#include "preload/freestanding/registers.h"

struct ml_region_call {
	enum ml_function function;
	ml_u64 address; /* of the region after the call */
	ml_u64 size;
	ml_u64 old_address; /* for mremap(), else 0 */
	const struct ml_registers *registers;
};

/*
 * To be called before the real call. 1 if regions are recorded and the caller is not the allocator, whose mappings hold
 * blocks that are recorded already.
 */
int ml_regions_take(ml_u64 return_address);

/*
 * An unmapping bears the time before the real call, a mapping the time after it. Another thread can get the range only
 * in between, so the events of two threads are ordered as the address space changed.
 */
void ml_regions_unmapped(ml_u64 address, ml_u64 size, ml_u64 before_ns);
void ml_regions_mapped(const struct ml_region_call *call);

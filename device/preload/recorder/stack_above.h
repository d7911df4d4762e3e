/* SPDX-License-Identifier: Apache-2.0 */
/* What leads through the part of a deep stack that its slice does not hold (struct ml_stack_above). */
#ifndef MEMLEAK_STACK_ABOVE_H
#define MEMLEAK_STACK_ABOVE_H

#include "preload/segment/segment.h"

/* Of one record: a ring takes none of more than 256 KiB. */
#define ML_RING_ABOVE_WORDS 12288u

#define ML_STACK_ABOVE_ROOM (sizeof(struct ml_stack_above) + ML_RING_ABOVE_WORDS * (sizeof(ml_u64) + sizeof(ml_u32)))

/*
 * Stores the words from `begin` to `end` that point to code or to this part of the stack, at most ML_RING_ABOVE_WORDS. The memory
 * must be readable: a thread's own stack is. Returns the bytes used, 0 where there are no such words. *hash changes with them.
 */
ml_u32 ml_stack_above_store(const struct ml_code_map *map, ml_u64 begin, ml_u64 end, struct ml_stack_above *to, ml_u64 *hash);

#endif

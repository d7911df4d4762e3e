/* SPDX-License-Identifier: Apache-2.0 */
/* The rule of a return address that none is known for yet, out of the CFI in the process's own memory (cfi/cfi.h). */
#pragma once

#include "frame_rule.h"
#include "preload/segment/segment.h"

/* Room on the caller's stack without which no look-up is tried: it takes less than half of it. */
#define ML_FRAME_RESOLVE_STACK_BYTES (8u << 10)

/*
 * Puts the rule into the table and into *rule; 0 where nothing can be said now: another thread is at it (or this one, in
 * a handler), the memory cannot be read, no ELF file is known there. Takes some microseconds, once for each address.
 */
int ml_frame_resolve(const struct ml_view *view, const struct ml_code_map *map, ml_u64 return_address,
		     struct ml_frame_rule *rule);

/* As ml_maps_forget(). */
void ml_frame_resolve_forget(ml_u32 patience_ms);

/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the rule of a return address in the CFI in the process's own memory (cfi/cfi.h). */
#pragma once

#include "frame_rule.h"
#include "preload/segment/segment.h"

/* Free stack required for a look-up, which takes less than half of it. */
#define ML_FRAME_RESOLVE_STACK_BYTES (8u << 10)

/*
 * Adds the rule to the table and copies it to *rule. Returns 0 if it cannot be found now: another thread (or this one,
 * interrupted by a handler) is looking one up, the memory is unreadable, or no ELF file is mapped there. Takes some
 * microseconds, once for each address.
 */
int ml_frame_resolve(const struct ml_view *view, const struct ml_code_map *map, ml_u64 return_address,
		     struct ml_frame_rule *rule);

/* Like ml_maps_forget(). */
void ml_frame_resolve_forget(ml_u32 patience_ms);

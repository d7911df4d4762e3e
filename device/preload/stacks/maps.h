/* SPDX-License-Identifier: Apache-2.0 */
/* /proc/self/maps: where code is, where stacks end, and the text itself for the host. */
#pragma once

#include "preload/segment/segment.h"

/*
 * Sends the text and makes the code map anew, or waits for the thread that does. To be called where the maps are not
 * clean; does nothing where the calling thread is at its ring already.
 */
void ml_maps_refresh(const struct ml_view *view, struct ml_thread *thread);

struct ml_maps_range {
	ml_u64 low;
	ml_u64 high;
	int is_main_stack;
};

/* The mapping around an address. 0 when there is none. Needs ML_OWNER_BUSY of `thread`, whose scratch memory it uses. */
int ml_maps_find(struct ml_thread *thread, ml_u64 address, struct ml_maps_range *found);

/*
 * Before a session. patience_ms: how long a thread is waited for that is still at it for the session before; 0 in a child,
 * whose other threads are gone in the middle of anything.
 */
#define ML_STRAGGLERS_MS 1000
void ml_maps_forget(ml_u32 patience_ms);

struct ml_maps_code {
	ml_u64 address; /* somewhere in it: set before the first reading */
	ml_u64 low;
	ml_u64 bytes;
};

static inline int ml_maps_code_has(const struct ml_maps_code *code, ml_u64 address)
{
	return address - code->low < code->bytes;
}

/* The code that the original malloc belongs to, and our own. */
extern struct ml_maps_code ml_maps_allocator, ml_maps_own;

/* The dynamic linker's own mappings: what it allocates announces that libraries come or go. */
extern ml_u64 ml_maps_linker_low, ml_maps_linker_bytes;

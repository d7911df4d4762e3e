/* SPDX-License-Identifier: Apache-2.0 */
/* /proc/self/maps: the code map, stack bounds, and the text for the host. */
#pragma once

#include "preload/segment/segment.h"

/*
 * Sends the text and makes a new code map, or waits for the thread that does. To be called while the maps are dirty;
 * does nothing if the calling thread is writing to its ring.
 */
void ml_maps_refresh(const struct ml_view *view, struct ml_thread *thread);

struct ml_maps_range {
	ml_u64 low;
	ml_u64 high;
	int is_main_stack;
};

/*
 * The mapping that contains an address; 0 if there is none. Needs ML_OWNER_BUSY of `thread`, whose scratch memory it
 * uses.
 */
int ml_maps_find(struct ml_thread *thread, ml_u64 address, struct ml_maps_range *found);

/*
 * To be called before a session. patience_ms: how long to wait for a thread that still reads for the last session; 0 in
 * a forked child (recorder/forks.h).
 */
#define ML_STRAGGLERS_MS 1000
void ml_maps_forget(ml_u32 patience_ms);

struct ml_maps_code {
	ml_u64 address; /* an address in it, set before the first reading */
	ml_u64 low;
	ml_u64 bytes;
};

static inline int ml_maps_code_has(const struct ml_maps_code *code, ml_u64 address)
{
	return address - code->low < code->bytes;
}

/* The code of the original malloc, and our own. */
extern struct ml_maps_code ml_maps_allocator, ml_maps_own;

/* The dynamic linker's code. Its allocations announce that modules are loaded or unloaded. */
extern ml_u64 ml_maps_linker_low, ml_maps_linker_bytes;

/* SPDX-License-Identifier: Apache-2.0 */
/* The interface between the agent and a process that it attaches to (preload/attach.h). */
#pragma once

#define ML_ATTACH_LINE_MAX 160 /* includes the final zero */

enum ml_attach_result {
	ML_ATTACH_OK = 0,
	ML_ATTACH_BAD_LINE = 1,
	ML_ATTACH_BUSY = 2,         /* another thread is attaching or detaching */
	ML_ATTACH_PRELOADED = 3,    /* the shim interposes in this process, so there is nothing to patch */
	ML_ATTACH_NO_ALLOCATOR = 4, /* no loaded module exports malloc and free */
	ML_ATTACH_NO_SLOT = 5,      /* no module calls the allocator through a slot */
	ML_ATTACH_NO_ORIGINAL = 6,  /* inline: memleak_hooks has no original of malloc or free, and there are no pairs */
	ML_ATTACH_NO_MODULES = 7,   /* the list of loaded modules cannot be read */
	ML_ATTACH_CHOSEN = 9,       /* malloc or free is an ifunc (STT_GNU_IFUNC), whose choice is unknown */
	ML_ATTACH_MEASURED = 10,    /* another session records the process by this copy of the shim */
	ML_ATTACH_NOT_FORKED_SAFE = 8, /* neither kernel nor libc would notify a forked child (recorder/forks.h) */
};

/*
 * The functions that can be hooked, by name. The agent finds the array by its symbol and its length by the symbol's
 * size. The loader fills in the entries (relocations).
 */
struct memleak_hook {
	char name[24];
	unsigned long entry;    /* ours, called in place of the allocator's */
	unsigned long original; /* inline: the moved function; 0 = not hooked */
};

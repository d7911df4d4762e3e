/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent and a process that it attaches to know of each other (preload/attach.h). */
#pragma once

#define ML_ATTACH_LINE_MAX 160 /* with the final zero; longer ones are refused */

enum ml_attach_result {
	ML_ATTACH_OK = 0,
	ML_ATTACH_BAD_LINE = 1,
	ML_ATTACH_BUSY = 2,         /* another thread attaches or detaches */
	ML_ATTACH_PRELOADED = 3,    /* the library interposes in this process: there is nothing to patch */
	ML_ATTACH_NO_ALLOCATOR = 4, /* no loaded module defines malloc and free for others */
	ML_ATTACH_NO_SLOT = 5,      /* no module calls the allocator through a slot */
	ML_ATTACH_NO_ORIGINAL = 6,  /* inline: memleak_hooks names no place for malloc or free, and no pair is there */
	ML_ATTACH_NO_MODULES = 7,   /* the list of loaded modules cannot be read */
	ML_ATTACH_CHOSEN = 9,       /* malloc or free is what a resolver chose (STT_GNU_IFUNC) */
	ML_ATTACH_NOT_FORKED_SAFE = 8, /* neither kernel nor libc would tell a forked child that it is one */
};

/*
 * What can be hooked, by name. The agent finds the array by its symbol, and its length by the symbol's size; entries
 * are filled in by the loader (relocations).
 */
struct memleak_hook {
	char name[24];
	unsigned long entry;    /* our function, called as the allocator's */
	unsigned long original; /* inline: what does what the patched function did; 0 = not hooked */
};

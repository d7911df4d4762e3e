/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ways into a process that already runs: what libmemleak.so exports besides the functions that it interposes.
 *
 * The library is brought in by dlopen(path, RTLD_NOW | RTLD_LOCAL): its constructor then does nothing, it never
 * interposes, and it is never unloaded (DF_1_NODELETE). After that whoever brought it in calls memleak_attach() on a
 * thread that holds no lock of the loader's or of the allocator's and is in no signal handler; other threads run on.
 *
 *   int result = memleak_attach("NAME:NONCE mode=plt");      // ML_ATTACH_…, or -errno
 *   …
 *   int left = memleak_detach();                             // slots that could not be restored, or -errno
 *
 * NAME:NONCE are the agent's socket and 16 hexadecimal digits, as in MEMLEAK_SESSION. Modes:
 *   plt     the slots of all loaded modules through which the allocator is called are set to our entries; calls of the
 *           dynamic linker keep an eye on modules that come and go.
 *   inline  nothing is patched here. Before the call, the agent wrote into memleak_hooks where the beginning of each
 *           patched function was moved to (memleak_pair_originals for those of --pairs); after the call, it lets the functions themselves lead to our entries. It takes
 *           its bytes back after memleak_detach(): until then what is called only forwards.
 *
 * A second memleak_attach() detaches from the old session and arms under the new one. Slots that are patched stay so,
 * new modules join. Both functions are callable again and again, by one thread at a time (ML_ATTACH_BUSY for the other).
 * After memleak_detach() nothing of ours is called any more, but by who has kept a pointer from a slot: such calls
 * are forwarded.
 */
#ifndef MEMLEAK_ATTACH_H
#define MEMLEAK_ATTACH_H

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

extern struct memleak_hook memleak_hooks[] __attribute__((visibility("default")));

int memleak_attach(const char *line) __attribute__((visibility("default")));
int memleak_detach(void) __attribute__((visibility("default")));

/*
 * By slots, for a session without an agent (linked.h): ML_ATTACH_…, or -errno. Leaving keeps what was recorded, until
 * ml_recorder_retire().
 */
int ml_attach_own(void);
void ml_attach_leave_own(void);

/* In a process that was started with the library: the slots of functions of --pairs, which it does not interpose. */
void ml_attach_pairs(void);

/* At a moment at which the loader's lock may be waited for: puts everything back when the agent is gone. */
void ml_attach_tidy(void);

#endif

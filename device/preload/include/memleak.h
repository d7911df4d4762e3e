/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that watches its own memory: no agent, no socket, no adb; recordings are files in its own folder, which
 * `memleak-android report FILE` reads. docs/use/linked-in.md tells how to build with it.
 *
 * libmemleak.so has to come before the C library among the libraries that a module needs, so that its malloc() is found
 * first. Where it does not (a library that an Android app loads), memleak_start() sets the slots through which loaded
 * modules call the allocator. Either way nothing is recorded before memleak_start().
 *
 * Functions return 0 or a negated errno value. All of them may be called by any thread, memleak_mark() and
 * memleak_snapshot() also in a signal handler; none allocates. Memory is bounded: about 60 MB of address space on 64-bit
 * machines, of which what was used is made. A forked child is not recorded: in it all functions return -ECHILD.
 */
#ifndef MEMLEAK_H
#define MEMLEAK_H

#ifdef __cplusplus
extern "C" {
#endif

#define MEMLEAK_EVERY_ALLOCATION (~0ull) /* as sample_bytes */

/* All 0: the defaults. New fields come at the end, and 0 means what it was before. */
struct memleak_options {
	unsigned long long struct_bytes; /* sizeof(struct memleak_options) */
	unsigned long long sample_bytes; /* mean distance of samples in bytes; 0 = 65536 */
	unsigned long long max_live;     /* sampled blocks that are remembered at one time; 0 = 65536 */
};

/*
 * Begins to record; options: NULL = the defaults. -EBUSY: it is recorded already, by itself or by a tracer; -EINVAL: the
 * options; -ENOMEM; -ENOEXEC: no call of the allocator leads here, and none could be made to.
 */
int memleak_start(const struct memleak_options *options);

/* Ends it; what was recorded can still be written. -ESRCH: it was not begun. */
int memleak_stop(void);

/*
 * Puts down the moment and how much is held: the report shows the first twenty or so. At most 63 bytes of a name and 64
 * marks are kept.
 * -ENOSPC: there are as many already.
 */
int memleak_mark(const char *name);

/*
 * Writes what is held now, each block as it was at one instant of the call, other threads going on. The file (mode 0600) is
 * written beside `path`, whose name it has with a random number and ".new" appended, and renamed; what was there stays until
 * then. What open(2), write(2), fsync(2) and rename(2) can return: -EACCES, -ENOENT, -ENOSPC …; -EBUSY: another snapshot is
 * being written; -ESRCH: nothing was recorded; -EFBIG: beyond the limit of file sizes.
 */
int memleak_snapshot(const char *path);

#ifdef __cplusplus
}
#endif

#endif

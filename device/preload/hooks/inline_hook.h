/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room for what inline hooks move out of the way (host/tracers/inline/patch_plan.py, "trampoline"): memory that is executable and
 * never writable, into which the agent writes by ptrace. It stays when the hooks are gone: a thread may be in it.
 */
#pragma once

#define ML_ROOM_BYTES 24576 /* for the functions of one allocator, and all of --pairs */
#define ML_ROOM_PAGE 4096  /* unit of memleak_reserve()'s result */
#define ML_ROOM_BIAS (1 << 20)

/*
 * line: an address in 16 hexadecimal digits. Room within a direct jump's reach of it, the same for the same address each time:
 * ML_ROOM_BIAS + its distance in units of ML_ROOM_PAGE from the address's own. -errno: there is none (EACCES: SELinux
 * denies execmem); then memleak_room, in the library's own text, has to do.
 */
int memleak_reserve(const char *line) __attribute__((visibility("default")));

/* An address in the code of the allocator whose functions are patched; 0: none ever was. Written by the agent before attaching. */
extern unsigned long memleak_moved_code __attribute__((visibility("default")));

/* Zeros; never called. */
void memleak_room(void) __attribute__((visibility("default")));

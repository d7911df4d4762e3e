/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for the instructions that inline hooks move away (host/tracers/inline/patch_plan.py, "trampoline"). It is
 * executable and never writable: the agent writes by ptrace. It stays after the hooks are removed, since a thread may
 * be in it.
 */
#pragma once

#define ML_ROOM_BYTES 24576 /* for one allocator and all --pairs */
#define ML_ROOM_PAGE 4096  /* unit of memleak_reserve()'s result */
#define ML_ROOM_BIAS (1 << 20)

/*
 * line: an address as 16 hexadecimal digits. Reserves memory within a direct jump's range, the same for the same
 * address each time. Returns ML_ROOM_BIAS + its distance from the address's page in units of ML_ROOM_PAGE, or -errno
 * (EACCES: SELinux denies execmem); then memleak_room in the library's own text must do.
 */
int memleak_reserve(const char *line) __attribute__((visibility("default")));

/* An address in the code of the patched allocator; 0: none was ever patched. Written by the agent before attaching. */
extern unsigned long memleak_moved_code __attribute__((visibility("default")));

/* Zeros, never called. */
void memleak_room(void) __attribute__((visibility("default")));

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interposed functions and the entries of --pairs: calls of the target come in, events for the recorder and calls
 * of the originals go out. This header: the originals, and memory for calls made before they are known.
 */
#pragma once

#include "preload/entries/function_table.h"

struct ml_originals {
#define FIELD(name, result, parameters) result(*name) parameters;
	ML_ALLOCATOR_FUNCTIONS(FIELD)
	ML_EXEC_FUNCTIONS(FIELD)
	ML_REGION_FUNCTIONS(FIELD)
	ML_SELF_FUNCTIONS(FIELD)
#undef FIELD
};

extern struct ml_originals ml_original;

/*
 * 1 once the originals are known; the recorder has started by then if there is a session. 0 during the look-up, in
 * which dlsym() may allocate: then the arena serves.
 */
int ml_originals_ready(void);

/* 1 if the target's calls reached the shim before an attach, by name, because it was preloaded. */
extern int ml_originals_are_interposed __attribute__((visibility("hidden")));

/* ml_original has been filled in by attaching; calls may be forwarded now. */
void ml_originals_adopt(void);

/* The function that a name led to without the shim, in a process that was started with it; NULL: none. */
void *ml_next_definition(const char *name);

/* operator new as the dynamic linker finds it, in a process that was started with the shim; NULL: there is none. */
extern void *ml_next_operator_new __attribute__((visibility("hidden")));
extern void *ml_next_sdallocx __attribute__((visibility("hidden")));

/* Sets the target's errno and returns -1, as a libc does. */
int ml_fail(int error);

/* The kernel's result as a libc returns it. */
long ml_from_kernel(long result);

/* Zeroed memory that is never reclaimed, 64 KiB in all. NULL if used up. */
void *ml_arena_alloc(size_t alignment, size_t size);
int ml_arena_owns(const void *pointer);
size_t ml_arena_size(const void *pointer);

/* Limits that a program sets for itself, and that are not meant for the shim's memory (limits.c). */
#if __SIZEOF_LONG__ == 8
/* Before exec: the new program gets the limit that this one asked for. */
void ml_limits_restore(void);
#else
static inline void ml_limits_restore(void)
{
}
#endif

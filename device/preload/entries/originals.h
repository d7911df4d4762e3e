/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that would be called without us, and memory for calls before they are known. */
#pragma once

#include "preload/entries/function_table.h"

struct ml_originals {
#define FIELD(name, result, parameters) result(*name) parameters;
	ML_ALLOCATOR_FUNCTIONS(FIELD)
	ML_EXEC_FUNCTIONS(FIELD)
	ML_REGION_FUNCTIONS(FIELD)
#undef FIELD
};

extern struct ml_originals ml_original;

/*
 * 1 when the originals are known (and the recorder had its chance to start). 0 while they are being looked up: dlsym()
 * may allocate, and then the arena serves.
 */
int ml_originals_ready(void);

/* 1 when the target's calls have come to us by name: the library was preloaded. */
int ml_originals_are_interposed(void);

/* ml_original has been filled in, by who attaches: calls may be forwarded from now on. */
void ml_originals_adopt(void);

/* Sets the target's errno and returns -1, as a libc does. */
int ml_fail(int error);

/* Memory that is never given back: 64 KiB in all, zeroed. NULL when used up. */
void *ml_arena_alloc(size_t alignment, size_t size);
int ml_arena_owns(const void *pointer);
size_t ml_arena_size(const void *pointer);

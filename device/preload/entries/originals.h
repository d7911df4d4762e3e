/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that would be called without us, and memory for calls before they are known. */
#ifndef MEMLEAK_ORIGINALS_H
#define MEMLEAK_ORIGINALS_H

#include <stddef.h>

struct ml_originals {
	void *(*malloc)(size_t);
	void *(*calloc)(size_t, size_t);
	void *(*realloc)(void *, size_t);
	void *(*reallocarray)(void *, size_t, size_t);
	void (*free)(void *);
	void (*cfree)(void *);
	int (*posix_memalign)(void **, size_t, size_t);
	void *(*memalign)(size_t, size_t);
	void *(*aligned_alloc)(size_t, size_t);
	void *(*valloc)(size_t);
	void *(*pvalloc)(size_t);
	void (*free_sized)(void *, size_t);
	void (*free_aligned_sized)(void *, size_t, size_t);
	size_t (*malloc_usable_size)(void *);
	int (*execve)(const char *, char *const *, char *const *);
	int (*execvpe)(const char *, char *const *, char *const *);
	int (*fexecve)(int, char *const *, char *const *);
	void *(*mmap)(void *, size_t, int, int, int, long);
	void *(*mmap64)(void *, size_t, int, int, int, long);
	int (*munmap)(void *, size_t);
	void *(*mremap)(void *, size_t, size_t, int, ...);
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

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that the shim interposes, as X(name, result, parameters). Their numbers are enum ml_function in wire.h,
 * which the BPF programs, the agent and the host share; those know no C types, so the two lists stay apart.
 */
#pragma once

#include <stddef.h>

#define ML_ACQUIRING_FUNCTIONS(X)                         \
	X(malloc, void *, (size_t))                       \
	X(calloc, void *, (size_t, size_t))               \
	X(realloc, void *, (void *, size_t))              \
	X(reallocarray, void *, (void *, size_t, size_t)) \
	X(posix_memalign, int, (void **, size_t, size_t)) \
	X(memalign, void *, (size_t, size_t))             \
	X(aligned_alloc, void *, (size_t, size_t))        \
	X(valloc, void *, (size_t))                       \
	X(pvalloc, void *, (size_t))

#define ML_RELEASING_FUNCTIONS(X)             \
	X(free, void, (void *))               \
	X(cfree, void, (void *))              \
	X(free_sized, void, (void *, size_t)) \
	X(free_aligned_sized, void, (void *, size_t, size_t))

#define ML_ALLOCATOR_FUNCTIONS(X) ML_ACQUIRING_FUNCTIONS(X) ML_RELEASING_FUNCTIONS(X) X(malloc_usable_size, size_t, (void *))

/* A libc builds its other forms of exec on these. */
#define ML_EXEC_FUNCTIONS(X)                                          \
	X(execve, int, (const char *, char *const *, char *const *))  \
	X(execvpe, int, (const char *, char *const *, char *const *)) \
	X(fexecve, int, (int, char *const *, char *const *))

#define ML_REGION_FUNCTIONS(X)                                   \
	X(mmap, void *, (void *, size_t, int, int, int, long))   \
	X(mmap64, void *, (void *, size_t, int, int, int, long)) \
	X(munmap, int, (void *, size_t))                         \
	X(mremap, void *, (void *, size_t, size_t, int, ...))    \
	X(shmat, void *, (int, const void *, int))               \
	X(shmdt, int, (const void *))                            \
	X(sbrk, void *, (long))                                  \
	X(brk, int, (void *))

/*
 * operator new and delete (Itanium C++ ABI, 5.1.5.3 "Operator Encodings"): hooked where the allocator's own object defines
 * them, as those of tcmalloc, jemalloc and mimalloc do. There they need not come by malloc. s: how size_t is encoded.
 */
#define ML_OPERATORS_NEW_(X, s)                   \
	X(_Znw##s)                                \
	X(_Zna##s)                                \
	X(_Znw##s##RKSt9nothrow_t)                \
	X(_Zna##s##RKSt9nothrow_t)                \
	X(_Znw##s##St11align_val_t)               \
	X(_Zna##s##St11align_val_t)               \
	X(_Znw##s##St11align_val_tRKSt9nothrow_t) \
	X(_Zna##s##St11align_val_tRKSt9nothrow_t)
#define ML_OPERATORS_DELETE_(X, s)             \
	X(_ZdlPv)                              \
	X(_ZdaPv)                              \
	X(_ZdlPv##s)                           \
	X(_ZdaPv##s)                           \
	X(_ZdlPvRKSt9nothrow_t)                \
	X(_ZdaPvRKSt9nothrow_t)                \
	X(_ZdlPvSt11align_val_t)               \
	X(_ZdaPvSt11align_val_t)               \
	X(_ZdlPv##s##St11align_val_t)          \
	X(_ZdaPv##s##St11align_val_t)          \
	X(_ZdlPvSt11align_val_tRKSt9nothrow_t) \
	X(_ZdaPvSt11align_val_tRKSt9nothrow_t)
/* Also jemalloc's own interface, by which Rust's jemallocator frees what malloc returned. */
#if __SIZEOF_LONG__ == 8
#define ML_OPERATORS_NEW(X) ML_OPERATORS_NEW_(X, m) X(mallocx)
#define ML_OPERATORS_DELETE(X) ML_OPERATORS_DELETE_(X, m) X(dallocx) X(sdallocx)
#else
#define ML_OPERATORS_NEW(X) ML_OPERATORS_NEW_(X, j) X(mallocx)
#define ML_OPERATORS_DELETE(X) ML_OPERATORS_DELETE_(X, j) X(dallocx) X(sdallocx)
#endif
#define ML_OPERATORS_RESIZE(X) X(rallocx)

/* Calls by which a program would harm itself if it did not know of the shim: sandbox.c, limits.c. */
#define ML_SANDBOX_FUNCTIONS(X)                                                          \
	X(prctl, int, (int, unsigned long, unsigned long, unsigned long, unsigned long)) \
	X(syscall, long, (long, long, long, long, long, long, long))

#if __SIZEOF_LONG__ == 8 /* with 32 bits the segment is small, and struct rlimit has two forms */
struct rlimit;
#define ML_LIMIT_FUNCTIONS(X)                                               \
	X(mlockall, int, (int))                                             \
	X(getrlimit, int, (int, struct rlimit *))                           \
	X(getrlimit64, int, (int, struct rlimit *))                         \
	X(setrlimit, int, (int, const struct rlimit *))                     \
	X(setrlimit64, int, (int, const struct rlimit *))                   \
	X(prlimit, int, (int, int, const struct rlimit *, struct rlimit *)) \
	X(prlimit64, int, (int, int, const struct rlimit *, struct rlimit *))
#else
#define ML_LIMIT_FUNCTIONS(X)
#endif
#define ML_SELF_FUNCTIONS(X) ML_SANDBOX_FUNCTIONS(X) ML_LIMIT_FUNCTIONS(X)

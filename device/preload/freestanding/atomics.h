/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read-modify-write operations, exact against other threads and against signal handlers of this one. A locked
 * instruction costs some 5 ns, and most programs have one thread. Then one unlocked instruction is enough, since a
 * handler runs before or after it. The agent only reads these words.
 */
#pragma once

#include "wire.h"

/*
 * Shared 64-bit words, accessed atomically on 64-bit machines. On 32-bit machines a read can tear; readers there
 * validate the value by other means.
 */
static inline ml_u64 ml_read(const volatile ml_u64 *word)
{
	return sizeof(long) == 8 ? __atomic_load_n(word, __ATOMIC_RELAXED) : *word;
}

static inline void ml_write(volatile ml_u64 *word, ml_u64 value)
{
	if (sizeof(long) == 8)
		__atomic_store_n(word, value, __ATOMIC_RELAXED);
	else
		*word = value;
}

/* glibc's promise (sys/single_threaded.h), withdrawn before a second thread starts. Weak: other libcs have none. */
extern char __libc_single_threaded __attribute__((weak));

static inline int ml_is_single_threaded(void)
{
	return &__libc_single_threaded && *(volatile char *)&__libc_single_threaded;
}

/* ml_…_own(): exact only against handlers of this thread. */
#if defined(__x86_64__)
#define ML_HAS_UNLOCKED 1

static inline void ml_add_own(ml_u64 *word, ml_u64 value)
{
	__asm__ volatile("addq %1, %0" : "+m"(*word) : "er"(value) : "cc");
}

static inline int ml_exchange_own(ml_u64 *word, ml_u64 from, ml_u64 to)
{
	ml_u64 found = from;

	__asm__ volatile("cmpxchgq %2, %1" : "+a"(found), "+m"(*word) : "r"(to) : "memory", "cc");
	return found == from;
}

static inline ml_u64 ml_subtract_own(ml_u64 *word, ml_u64 value)
{
	ml_u64 change = -value;

	__asm__ volatile("xaddq %0, %1" : "+r"(change), "+m"(*word) : : "memory", "cc");
	return change - value;
}

#else
#define ML_HAS_UNLOCKED 0
#define ml_add_own ml_add
#define ml_exchange_own ml_exchange_if
#define ml_subtract_own ml_subtract
#endif

static inline void ml_add(ml_u64 *word, ml_u64 value)
{
	if (ML_HAS_UNLOCKED && ml_is_single_threaded())
		ml_add_own(word, value);
	else
		__atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}

static inline int ml_exchange_if(ml_u64 *word, ml_u64 from, ml_u64 to)
{
	if (ML_HAS_UNLOCKED && ml_is_single_threaded())
		return ml_exchange_own(word, from, to);
	return __atomic_compare_exchange_n(word, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* Returns what is left. */
static inline ml_u64 ml_subtract(ml_u64 *word, ml_u64 value)
{
	if (ML_HAS_UNLOCKED && ml_is_single_threaded())
		return ml_subtract_own(word, value);
	return __atomic_sub_fetch(word, value, __ATOMIC_ACQ_REL);
}

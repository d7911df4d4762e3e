/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock that is tried, never waited for. In a forked child it is free if a thread of the parent held it
 * (recorder/forks.h).
 */
#pragma once

#include "preload/freestanding/syscalls.h"

struct ml_lock {
	int owner; /* process; 0 = free */
};

static inline int ml_lock_try(struct ml_lock *lock)
{
	int self = (int)ML_SYSCALL0(getpid), owner = __atomic_load_n(&lock->owner, __ATOMIC_RELAXED);

	return owner != self && __atomic_compare_exchange_n(&lock->owner, &owner, self, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* Returns the result, so that a function can end with it. */
static inline int ml_lock_release(struct ml_lock *lock, int result)
{
	__atomic_store_n(&lock->owner, 0, __ATOMIC_RELEASE);
	return result;
}

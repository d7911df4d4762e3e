/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_WORDS_H
#define MEMLEAK_WORDS_H

#include "wire.h"

/*
 * Words that others may read or write at the same moment, each whole where the machine has such words; elsewhere who reads
 * them finds out otherwise whether they belong together.
 */
static inline ml_u64 ml_read(const volatile ml_u64 *place)
{
	return sizeof(long) == 8 ? __atomic_load_n(place, __ATOMIC_RELAXED) : *place;
}

static inline void ml_write(volatile ml_u64 *place, ml_u64 value)
{
	if (sizeof(long) == 8)
		__atomic_store_n(place, value, __ATOMIC_RELAXED);
	else
		*place = value;
}

#endif

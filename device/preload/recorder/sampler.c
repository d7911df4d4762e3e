// SPDX-License-Identifier: Apache-2.0
#include "preload/recorder/sampler.h"

#include "preload/segment/thread.h"

#define LN2 0.69314718055994530942

/* In halves: 32-bit processors cannot convert 64 bits, and there is no compiler library. */
static double to_double(ml_u64 x)
{
	return (double)(ml_u32)(x >> 32) * 0x1p32 + (double)(ml_u32)x;
}

static ml_u64 to_integer(double x)
{
	ml_u32 high = (ml_u32)(x * 0x1p-32);

	return (ml_u64)high << 32 | (ml_u32)(x - (double)high * 0x1p32);
}

/*
 * The natural logarithm of x / 2^64 for x > 0, with a relative error below 1e-9.
 * ln m = 2 artanh((m-1)/(m+1)), and m in [1, 2) makes the argument at most 1/3: 9 odd powers are enough.
 */
static double logarithm(ml_u64 x)
{
	int shift = __builtin_clzll(x);
	double m = to_double(x << shift) * 0x1p-63;
	double z = (m - 1) / (m + 1), z2 = z * z, sum = 0;

	for (int power = 17; power > 0; power -= 2)
		sum = sum * z2 + 1.0 / power;
	return 2 * z * sum - (shift + 1) * LN2;
}

/* At least 1, so that a block of 0 bytes is never taken. 0 means that the thread has no mark yet. */
static ml_u64 distance(struct ml_thread *thread, ml_u64 mean_bytes)
{
	double bytes = -logarithm(ml_thread_random(thread) | 1) * to_double(mean_bytes);

	return bytes < 0x1p62 ? to_integer(bytes) + 1 : 1ull << 62;
}

int ml_sampler_takes(struct ml_thread *thread, ml_u64 mean_bytes, ml_u64 size)
{
	if (!thread->countdown)
		thread->countdown = distance(thread, mean_bytes);
	if (ml_sampler_skips(thread, size))
		return 0;
	thread->countdown =
		distance(thread, mean_bytes); /* the process has no memory, so further marks in this block do not matter */
	return 1;
}

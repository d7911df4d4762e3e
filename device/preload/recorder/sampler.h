/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Poisson sampling by bytes: marks lie on the stream of allocated bytes at exponentially distributed distances of mean
 * N; a block is taken when at least one mark lies in it, so with p = 1 - exp(-size / N), whatever came before. Distances
 * are rounded up to whole bytes: sizes are whole, so that changes nothing.
 */
#pragma once

#include "preload/segment/segment.h"

/* The common case: 1 when the next mark lies beyond the block. When not, and for a new thread, nothing is changed. */
static inline int ml_sampler_skips(struct ml_thread *thread, ml_u64 size)
{
	ml_u64 countdown = thread->countdown; /* once: threads may share a slot */

	if (size >= countdown)
		return 0;
	thread->countdown = countdown - size;
	return 1;
}

int ml_sampler_takes(struct ml_thread *thread, ml_u64 mean_bytes, ml_u64 size);

/* The natural logarithm of x / 2^64, for 0 < x; relative error below 1e-9. */
double ml_sampler_log(ml_u64 x);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Poisson sampling by bytes: marks lie on the stream of allocated bytes at exponential distances of mean N. A block is
 * taken if it contains a mark, so with p = 1 - exp(-size / N), independent of earlier blocks. Rounding distances up to
 * whole bytes changes nothing, because sizes are whole.
 */
#pragma once

#include "preload/segment/segment.h"

/* The common case: 1 if the next mark lies beyond the block. Otherwise, and for a new thread, nothing changes. */
static inline int ml_sampler_skips(struct ml_thread *thread, ml_u64 size)
{
	ml_u64 countdown = thread->countdown; /* read once: threads may share a slot */

	if (size >= countdown)
		return 0;
	thread->countdown = countdown - size;
	return 1;
}

int ml_sampler_takes(struct ml_thread *thread, ml_u64 mean_bytes, ml_u64 size);

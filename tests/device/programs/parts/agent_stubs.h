/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the agent that parts of it call, for programs that link those parts alone: no block is sent. */
#include <time.h>

#include "agent/protocol/blocks.h"

int ml_blocks_writev(enum ml_block_kind kind, const struct iovec *parts, int n_parts)
{
	return (void)kind, (void)parts, n_parts;
}

int ml_blocks_gap(const char *condition_and_answer, const char *format, ...)
{
	return (void)condition_and_answer, (void)format, 0;
}

ml_u64 ml_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (ml_u64)now.tv_sec * 1000000000ull + (ml_u64)now.tv_nsec;
}

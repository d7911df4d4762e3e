/* SPDX-License-Identifier: Apache-2.0 */
/* The levels of the BPF tracer's live table: created on demand, read through shared memory. */
#ifndef MEMLEAK_LIVE_LEVELS_H
#define MEMLEAK_LIVE_LEVELS_H

#include "agent/bpf/object.h"

/* Makes and maps the first level. 0, or -1 after an ERROR block. */
int ml_bpf_begin_levels(struct ml_bpf *bpf);

/* Adds a level when the newest fills up, until there is room for max_live blocks. */
void ml_bpf_grow(struct ml_bpf *bpf, ml_u64 max_live);

static inline ml_u32 ml_bpf_level_buckets(const struct ml_bpf *bpf, ml_u32 level)
{
	return 1u << (bpf->buckets_shift + level);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets of a segment's parts, computed from the settings alone. */
#pragma once

#include "preload/segment/handshake.h"

#define ML_TABLE_LEVELS 16

struct ml_layout {
	ml_u64 code_maps;
	ml_u64 rules;  /* struct ml_frame_rule[ML_FRAME_RULES] */
	ml_u64 owners; /* ml_u64[n_threads] */
	ml_u64 threads;
	ml_u64 memos; /* struct ml_memo[n_threads][ML_MEMOS] */
	ml_u64 key_index; /* ml_u32[2 * n_keys]: index of an entry, 0 = empty */
	ml_u64 keys;
	ml_u64 peaks; /* ml_u64[n_keys], peak_state.h */
	ml_u64 filter; /* ml_u8[ML_FILTER_COUNTS] */
	ml_u64 chunk_numbers; /* ml_u64[n_chunks]: address >> ML_SHADOW_CHUNK_SHIFT, plus 1 */
	ml_u64 chunks;
	ml_u64 rests; /* struct ml_shadow_rest[ml_shadow_n_rests()] */
	ml_u64 level_slots[ML_TABLE_LEVELS];
	ml_u64 level_displaced[ML_TABLE_LEVELS]; /* a bit for each pair of buckets, see table.c */
	ml_u32 n_levels;
	ml_u32 first_level_bits; /* log2 of the buckets of level 0; each further level has four times as many */
	ml_u64 rings;
	ml_u64 hooked; /* struct ml_hooked[ML_HOOKED_MAX] */
	ml_u64 pairs; /* struct ml_pair_table */
	ml_u64 bytes;
};

static inline ml_u32 ml_layout_level_bits(const struct ml_layout *layout, ml_u32 level)
{
	return layout->first_level_bits + 2 * level;
}

int ml_layout_compute(const struct ml_settings *settings, struct ml_layout *layout); /* -1: out of bounds */

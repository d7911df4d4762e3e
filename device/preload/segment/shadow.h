/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first half of the live table: shadow memory, where the location of a block's word follows from its address. A
 * chunk of the heap that holds blocks has a chunk of words, one for each 32 bytes. Neighbours in the heap are
 * neighbours here, so the table uses the caches as well as the target does. Data for snapshots are in rests, whose
 * memory depends on the number of live blocks only. Blocks without a word (two within 32 bytes, large blocks, odd
 * addresses, a huge heap) are in table.c's hashed half.
 */
#pragma once

#include "preload/segment/segment.h"

#define ML_SHADOW_GRANULE_SHIFT 5 /* the least distance of two blocks in glibc */
#define ML_SHADOW_PROBES 8u

#define ML_SHADOW_USED 1u
#define ML_SHADOW_PART_SHIFT 1  /* the 8 bytes of the granule in which the block begins */
#define ML_SHADOW_KEY_SHIFT 3
#define ML_SHADOW_SIZE_SHIFT 23
#define ML_SHADOW_SIZE_MAX (1u << 13)
#define ML_SHADOW_TURN_SHIFT 36 /* number in its rest */
#define ML_SHADOW_REST_SHIFT (ML_SHADOW_TURN_SHIFT + ML_SHADOW_TURN_BITS)
#define ML_SHADOW_FUNCTION_SHIFT 58

static inline ml_u64 ml_shadow_part(ml_u64 address)
{
	return (address >> 3 & 3) << ML_SHADOW_PART_SHIFT | ML_SHADOW_USED;
}

/* Whether the word belongs to a block at this address, given that the granule is right. */
static inline int ml_shadow_is_at(ml_u64 word, ml_u64 address)
{
	return (word & ((1u << ML_SHADOW_KEY_SHIFT) - 1)) == ml_shadow_part(address);
}

static inline ml_u32 ml_shadow_first(const struct ml_view *view, ml_u64 chunk)
{
	return (ml_u32)(chunk * 0x9e3779b97f4a7c15ull >> 32) & (view->settings.n_chunks - 1);
}

static inline ml_u64 *ml_shadow_at(const struct ml_view *view, ml_u32 index, ml_u64 address)
{
	return &view->chunks[index].words[(address >> ML_SHADOW_GRANULE_SHIFT) % ML_SHADOW_GRANULES];
}

/* For ml_shadow_find(): probes beyond the first slot. */
ml_u64 *ml_shadow_find_on(const struct ml_view *view, ml_u64 address);

/* The word of a block at the address; NULL if there is none. */
static inline ml_u64 *ml_shadow_find(const struct ml_view *view, ml_u64 address)
{
	ml_u64 chunk = address >> ML_SHADOW_CHUNK_SHIFT;
	ml_u32 first;

	if (!view->settings.n_chunks)
		return NULL;
	first = ml_shadow_first(view, chunk);
	if (__builtin_expect(__atomic_load_n(&view->chunk_numbers[first], __ATOMIC_ACQUIRE) == chunk + 1, 1))
		return ml_shadow_at(view, first, address);
	return ml_shadow_find_on(view, address);
}

/* ml_shadow_find() that allocates a chunk if needed. */
ml_u64 *ml_shadow_find_or_make(const struct ml_view *view, ml_u64 address);

#define ML_SHADOW_NO_REST 0xffffffffu

/*
 * 1 if n_more blocks keep both halves of the table within max_live. Open rests count as full and frees are subtracted
 * in steps, so the last few hundred blocks of each thread may be unavailable.
 */
static inline int ml_shadow_has_room(const struct ml_view *view, ml_u64 n_more)
{
	const struct ml_segment *segment = view->segment;
	ml_u64 used =
		__atomic_load_n(&segment->n_hashed, __ATOMIC_RELAXED) + __atomic_load_n(&segment->n_shadowed, __ATOMIC_RELAXED);

	return used + n_more <= view->settings.max_live;
}

/*
 * Rest and number of a thread's next block, as in its word from ML_SHADOW_TURN_SHIFT on, and sets entry->sequence.
 * ML_SHADOW_NO_REST: the block is to be hashed, near max_live, in a handler or without a thread slot.
 */
ml_u32 ml_shadow_take_turn(const struct ml_view *view, struct ml_thread *thread, struct ml_entry *entry);
void ml_shadow_return_turn(const struct ml_view *view, struct ml_thread *thread, ml_u32 rest_turn);

static inline ml_u32 ml_shadow_rest_turn(ml_u64 word)
{
	return (ml_u32)(word >> ML_SHADOW_TURN_SHIFT);
}

static inline ml_u32 ml_shadow_rest_of(ml_u64 word)
{
	return (ml_u32)(word >> ML_SHADOW_REST_SHIFT);
}

static inline ml_u64 ml_shadow_word(ml_u64 address, const struct ml_entry *entry, ml_u32 rest_turn)
{
	return (ml_u64)rest_turn << ML_SHADOW_TURN_SHIFT | entry->size << ML_SHADOW_SIZE_SHIFT |
	       (ml_u64)entry->key_index << ML_SHADOW_KEY_SHIFT | ml_shadow_part(address);
}

static inline ml_u64 ml_shadow_size(ml_u64 word)
{
	return word >> ML_SHADOW_SIZE_SHIFT & (ML_SHADOW_SIZE_MAX - 1);
}

static inline ml_u32 ml_shadow_key_index(ml_u64 word)
{
	return (ml_u32)(word >> ML_SHADOW_KEY_SHIFT) & (ML_KEY_NUMBERS_MAX - 1);
}

static inline struct ml_entry ml_shadow_unpack(const struct ml_segment *segment, ml_u64 word,
					       const volatile struct ml_shadow_rest *rest)
{
	ml_u64 time_function = rest->time_function, sequence_tid = rest->sequence_tid;

	if (sequence_tid & ML_SEQUENCE_NUMBER_MASK)
		sequence_tid += ml_shadow_rest_turn(word) & ML_SHADOW_REST_BLOCKS;
	return (struct ml_entry){
		.size = ml_shadow_size(word),
		.timestamp_ns = segment->start_ns + (time_function & ((1ull << ML_SHADOW_FUNCTION_SHIFT) - 1)),
		.sequence = ml_sequence_unpack(segment, sequence_tid),
		.key_index = ml_shadow_key_index(word),
		.tid = (ml_u32)(sequence_tid >> ML_SEQUENCE_NUMBER_BITS),
		.function = (ml_u32)(time_function >> ML_SHADOW_FUNCTION_SHIFT),
	};
}

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The live table (session.h): address → block. Every total comes from it. */
#pragma once

#include "overflow.bpf.h"

/*
 * Sizes, not types: kernels 5.15 to 6.1 accept no level with BTF if the agent's have none (bpf_map_meta_equal()
 * compares timer_off, which map_check_btf() sets; until kernel commit db559117828d).
 */
struct ml_level {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(ml_u32));
	__uint(value_size, sizeof(struct ml_bpf_bucket));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ML_BPF_LEVELS);
	__type(key, ml_u32);
	__array(values, struct ml_level);
} levels SEC(".maps");

static __always_inline struct ml_bpf_bucket *ml_bucket(ml_u32 level, ml_u32 home, ml_u32 probe)
{
	ml_u32 index = (home + probe) & ((1u << (options.buckets_shift + level)) - 1);
	void *buckets = bpf_map_lookup_elem(&levels, &level);

	return buckets ? bpf_map_lookup_elem(buckets, &index) : NULL;
}

/* The slot with this word, or ML_BPF_BUCKET_SLOTS. */
static __always_inline ml_u32 ml_slot_of(const struct ml_bpf_bucket *bucket, ml_u64 word)
{
#pragma unroll
	for (ml_u32 i = 0; i < ML_BPF_BUCKET_SLOTS; i++)
		if (bucket->address[i] == word)
			return i;
	return ML_BPF_BUCKET_SLOTS;
}

/* As ml_slot_of(). Forked processes have blocks of the same address. */
static __always_inline ml_u32 ml_slot_of_block(const struct ml_bpf_bucket *bucket, ml_u64 address, ml_u64 process)
{
#pragma unroll
	for (ml_u32 i = 0; i < ML_BPF_BUCKET_SLOTS; i++)
		if (bucket->address[i] == address && bucket->block[i].process == process)
			return i;
	return ML_BPF_BUCKET_SLOTS;
}

static __always_inline ml_u32 ml_n_levels(const struct ml_bpf_code *shared)
{
	return shared && shared->n_levels <= ML_BPF_LEVELS ? (ml_u32)shared->n_levels : 0;
}

/* Copies the block and takes it out, before the allocator can reuse its address. */
static __always_inline bool ml_claim_in(struct ml_bpf_bucket *bucket, ml_u64 address, ml_u64 process,
					struct ml_bpf_block *block)
{
	ml_u32 slot = ml_slot_of_block(bucket, address, process);

	if (slot >= ML_BPF_BUCKET_SLOTS)
		return false;
	slot &= ML_BPF_BUCKET_SLOTS - 1;
	*block = bucket->block[slot];
	return block->process == process && __sync_val_compare_and_swap(&bucket->address[slot], address, 0) == address;
}

/* The home bucket in the newest level, where nearly all blocks are. */
static __always_inline struct ml_bpf_bucket *ml_home_bucket(ml_u64 address, ml_u32 *n_levels)
{
	ml_u32 zero = 0;
	struct ml_bpf_code *shared = bpf_map_lookup_elem(&code, &zero);

	*n_levels = ml_n_levels(shared);
	return *n_levels ? ml_bucket(*n_levels - 1, ml_bpf_home(address), 0) : NULL;
}

/*
 * Searches further along the newest level, older levels and the overflow map. Global, so that the verifier checks it
 * once for each program and not at each call.
 */
__noinline int ml_claim_elsewhere(ml_u64 address, struct ml_bpf_block *block)
{
	ml_u32 zero = 0;
	struct ml_bpf_code *shared = bpf_map_lookup_elem(&code, &zero);
	ml_u32 n = ml_n_levels(shared);

	if (!block || !shared)
		return false;
	for (ml_u32 i = 1; i <= ML_BPF_LEVELS && i <= n; i++) {
		for (ml_u32 probe = 0; probe < ML_BPF_BUCKET_PROBES; probe++) {
			struct ml_bpf_bucket *bucket = ml_bucket(n - i, ml_bpf_home(address), probe);
			ml_u64 process = block->process;

			if (!bucket)
				break;
			if (ml_claim_in(bucket, address, process, block))
				return true;
			block->process = process;
			if (!bucket->overflowed)
				break;
		}
	}
	return shared->has_overflow && ml_claim_overflow(address, block);
}

/* For a block that the verifier takes for uninitialized. */
static __noinline bool ml_claim_far(ml_u64 address, ml_u64 process, struct ml_bpf_block *block)
{
	struct ml_bpf_block found = { .process = process };

	if (!block || !ml_claim_elsewhere(address, &found))
		return false;
	*block = found;
	return true;
}

/* home: its home bucket, of n_levels. in: block->process; out: the rest. */
static __always_inline bool ml_claim_from(struct ml_bpf_bucket *home, ml_u32 n_levels, ml_u64 address,
					  struct ml_bpf_block *block)
{
	ml_u64 process = block->process;

	if (!home)
		return false;
	if (ml_claim_in(home, address, process, block))
		return true;
	if (n_levels == 1 && !home->overflowed)
		return false;
	return ml_claim_far(address, process, block);
}

static __always_inline bool ml_claim(ml_u64 address, ml_u64 process, struct ml_bpf_block *block)
{
	ml_u32 n_levels;
	struct ml_bpf_bucket *home = ml_home_bucket(address, &n_levels);

	block->process = process;
	return ml_claim_from(home, n_levels, address, block);
}

static __always_inline bool ml_put_in(struct ml_bpf_bucket *bucket, ml_u64 address, const struct ml_bpf_block *block)
{
	ml_u32 slot = ml_slot_of(bucket, 0);

	if (slot >= ML_BPF_BUCKET_SLOTS)
		return false;
	slot &= ML_BPF_BUCKET_SLOTS - 1;
	if (__sync_val_compare_and_swap(&bucket->address[slot], 0, ML_BPF_BUSY))
		return false; /* another CPU has claimed it; the next bucket will do */
	bucket->block[slot] = *block;
	__sync_lock_test_and_set(&bucket->address[slot], address);
	return true;
}

/*
 * Tries the newest level first, which has the most room. Returns 0 if there is none. Global, so that the verifier
 * checks it once.
 */
__noinline int ml_put_elsewhere(ml_u64 address, const struct ml_bpf_block *block)
{
	ml_u32 zero = 0;
	struct ml_bpf_code *shared = bpf_map_lookup_elem(&code, &zero);
	ml_u32 n = ml_n_levels(shared);

	if (!block)
		return false;
	for (ml_u32 i = 1; i <= ML_BPF_LEVELS && i <= n; i++) {
		for (ml_u32 probe = 0; probe < ML_BPF_BUCKET_PROBES; probe++) {
			struct ml_bpf_bucket *bucket = ml_bucket(n - i, ml_bpf_home(address), probe);

			if (!bucket)
				break;
			if (ml_put_in(bucket, address, block))
				return true;
			bucket->overflowed = 1;
		}
	}
	return ml_put_overflow(address, block);
}

/*
 * Inserts a block; false if there is no room. is_beside: other blocks of the address stay. Else one is replaced: then
 * *had_old is set, and it is in *old.
 */
static __always_inline bool ml_put(ml_u64 address, const struct ml_bpf_block *block, struct ml_bpf_block *old, bool *had_old,
				   bool is_beside)
{
	ml_u32 n_levels;
	struct ml_bpf_bucket *home = ml_home_bucket(address, &n_levels);

	old->process = block->process;
	*had_old = !is_beside && ml_claim_from(home, n_levels, address, old);
	return (home && ml_put_in(home, address, block)) || ml_put_elsewhere(address, block);
}

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Statistics of each function, counted here, so that no event is sent for them. */
#pragma once

#include "bpf/snoop/maps.bpf.h"

#define ML_RAISE_TRIES 8

/* Position of the highest bit of a value other than 0. */
static __always_inline ml_u32 ml_log2(ml_u64 value)
{
	ml_u32 result = 0;

	for (ml_u32 bits = 32; bits; bits /= 2) {
		if (value >> bits) {
			value >>= bits;
			result += bits;
		}
	}
	return result;
}

/* See ml_call_bucket in wire_calls.h. */
static __always_inline ml_u32 ml_bucket(ml_u64 duration_ns)
{
	ml_u32 power, bucket;

	if (duration_ns < ML_CALL_SUB_BUCKETS)
		return (ml_u32)duration_ns;
	power = ml_log2(duration_ns);
	bucket = (power - 3) * ML_CALL_SUB_BUCKETS + ((duration_ns >> (power - 4)) & (ML_CALL_SUB_BUCKETS - 1));
	return bucket < ML_CALL_BUCKETS ? bucket : ML_CALL_BUCKETS - 1;
}

#ifdef ML_SNOOP_OLD
/* Of two concurrent values one may be lost. */
static __always_inline void ml_raise(ml_u64 *number, ml_u64 value)
{
	if (*(volatile ml_u64 *)number < value)
		*(volatile ml_u64 *)number = value;
}
#else
static __always_inline void ml_raise(ml_u64 *number, ml_u64 value)
{
	for (int i = 0; i < ML_RAISE_TRIES; i++) {
		ml_u64 before = *(volatile ml_u64 *)number;

		if (before >= value || __sync_val_compare_and_swap(number, before, value) == before)
			return;
	}
}
#endif

static __noinline int ml_count_return(struct ml_snoop_statistics *counted, ml_u64 duration_ns)
{
	ml_u32 bucket = ml_bucket(duration_ns);

	if (!counted)
		return 0;
	ml_add(&counted->returns, 1);
	ml_add(&counted->total_ns, duration_ns);
	ml_raise(&counted->max_ns, duration_ns);
	ml_raise(&counted->max_inverted_ns, ~duration_ns);
	if (bucket < ML_CALL_BUCKETS)
		ml_add(&counted->buckets[bucket], 1);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/hot_keys.h"

#include <stdlib.h>

/* An update reads 16 MiB: seldom, but soon at first, because every key is hot before the first. */
#define FIRST_UPDATES_NS 10000000ull
#define UPDATE_NS 320000000ull
#define RISES 4
/*
 * A key is hot from 1/256 of the heap on: a site of one percent is several keys if several processes have it. A small part of a
 * large heap may be most of it later, when the rest is freed; the limit in bytes keeps such keys.
 */
#define HOT_SHARE 256
#define HOT_BYTES_MAX (64u << 10)
#define COLD_SHARE 32

static ml_u64 held_bytes(const struct ml_bpf_key *key)
{
	ml_u64 freed = __atomic_load_n(&key->free_bytes, __ATOMIC_RELAXED);
	ml_u64 allocated = __atomic_load_n(&key->alloc_bytes, __ATOMIC_RELAXED);

	return allocated > freed ? allocated - freed : 0;
}

/* The power of two below which keys together hold no more than 1/COLD_SHARE of all. */
static ml_u64 large_from(const ml_u64 sums[64], ml_u64 total)
{
	ml_u64 cold = 0;
	int i = 0;

	while (i < 63 && (cold += sums[i]) <= total / COLD_SHARE)
		i++;
	return 1ull << i;
}

static bool is_worth_evidence(struct ml_key_history *history, ml_u64 held, ml_u64 large)
{
	bool was_large = history->is_large;

	if (held < history->held)
		history->rises = 0;
	else
		history->rises += held > history->held;
	history->held = held;
	history->is_large = held >= large;
	return (was_large && history->is_large) || history->rises >= RISES;
}

/* The programs set flags as well, once, when a key appears. */
static void mark(struct ml_bpf_key *key, struct ml_key_history *history, ml_u64 large)
{
	ml_u64 held = held_bytes(key);
	bool is_hot = __atomic_load_n(&key->flags, __ATOMIC_RELAXED) & ML_BPF_KEY_HOT;

	if (is_worth_evidence(history, held, large) == is_hot)
		return;
	if (!is_hot)
		__atomic_fetch_or(&key->flags, ML_BPF_KEY_HOT, __ATOMIC_RELAXED);
	else
		__atomic_fetch_and(&key->flags, ~ML_BPF_KEY_HOT, __ATOMIC_RELAXED);
}

/* Marks all keys by what the last update found large. Returns the bytes they hold, in sums[] by powers of two. */
static ml_u64 mark_all(struct ml_hot_keys *hot, struct ml_bpf *bpf, ml_u64 sums[64])
{
	ml_u64 total = 0;

	for (ml_u32 slot = 0; slot < ML_BPF_KEY_SLOTS; slot++) {
		struct ml_key_history *history = &hot->history[slot];

		if (!bpf->keys[slot].key)
			continue;
		mark(&bpf->keys[slot], history, hot->large);
		if (!history->held)
			continue;
		sums[63 - __builtin_clzll(history->held)] += history->held;
		total += history->held;
	}
	return total;
}

int ml_hot_keys_update(struct ml_hot_keys *hot, struct ml_bpf *bpf, ml_u64 now_ns)
{
	ml_u64 sums[64] = { 0 }, total;

	if (now_ns < hot->next_ns)
		return 0;
	hot->pause_ns = !hot->history ? FIRST_UPDATES_NS : hot->pause_ns < UPDATE_NS ? 2 * hot->pause_ns : UPDATE_NS;
	hot->next_ns = now_ns + hot->pause_ns;
	if (!hot->history) {
		hot->history = calloc(ML_BPF_KEY_SLOTS, sizeof(*hot->history));
		hot->large = ~0ull;
	}
	if (!hot->history)
		return -1;
	total = mark_all(hot, bpf, sums);
	hot->large = large_from(sums, total);
	total /= HOT_SHARE;
	__atomic_store_n(&bpf->code->hot_bytes, total < HOT_BYTES_MAX ? total : HOT_BYTES_MAX, __ATOMIC_RELAXED);
	return 0;
}

void ml_hot_keys_destroy(struct ml_hot_keys *hot)
{
	free(hot->history);
	hot->history = NULL;
}

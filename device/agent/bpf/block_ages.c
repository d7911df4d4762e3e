// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/block_ages.h"

#include <stdlib.h>
#include <string.h>

#include "agent/bpf/live_levels.h"

/* A million blocks take some ten milliseconds. */
#define READ_AGAIN_NS 1000000000ull
/* Evidence leaves this share earlier: the snapshot that counts ages is taken after the last scan. */
#define EARLY_SHARE 8

static void take_bucket(struct ml_bpf *bpf, const struct ml_bpf_bucket *bucket)
{
	for (int i = 0; i < ML_BPF_BUCKET_SLOTS; i++) {
		ml_u64 address = __atomic_load_n(&bucket->address[i], __ATOMIC_ACQUIRE);
		ml_u64 timestamp_ns = bucket->block[i].timestamp_ns;
		ml_u32 slot = bucket->block[i].key_slot;

		/* Read twice: a slot that changed meanwhile holds a young block. */
		if (address <= ML_BPF_BUSY || slot >= ML_BPF_KEY_SLOTS ||
		    __atomic_load_n(&bucket->address[i], __ATOMIC_ACQUIRE) != address)
			continue;
		if (!bpf->oldest_ns[slot] || timestamp_ns < bpf->oldest_ns[slot])
			bpf->oldest_ns[slot] = timestamp_ns;
	}
}

void ml_bpf_read_ages(struct ml_bpf *bpf, ml_u64 now_ns)
{
	if (!bpf->oldest_ns)
		bpf->oldest_ns = malloc(ML_BPF_KEY_SLOTS * sizeof(*bpf->oldest_ns));
	if (!bpf->oldest_ns)
		return;
	bpf->ages_read_ns = now_ns;
	memset(bpf->oldest_ns, 0, ML_BPF_KEY_SLOTS * sizeof(*bpf->oldest_ns));
	for (ml_u32 level = 0; level < bpf->code->n_levels; level++)
		for (ml_u32 i = 0; i < ml_bpf_level_buckets(bpf, level); i++)
			take_bucket(bpf, &bpf->levels[level][i]);
}

ml_u64 ml_bpf_wanted_from(void *context, ml_u64 key, ml_u64 now_ns)
{
	struct ml_bpf *bpf = context;
	ml_u64 after_ns = bpf->evidence_after_ns - bpf->evidence_after_ns / EARLY_SHARE;
	const struct ml_bpf_key *entry = ml_bpf_find_key(bpf, key);
	ml_u64 oldest_ns, from_ns;

	/* The ages of blocks in the overflow map are not read. */
	if (!entry || bpf->is_old || bpf->code->has_overflow)
		return 0;
	if (now_ns - bpf->ages_read_ns > READ_AGAIN_NS)
		ml_bpf_read_ages(bpf, now_ns);
	if (!bpf->oldest_ns)
		return 0;
	oldest_ns = bpf->oldest_ns[entry - bpf->keys];
	from_ns = (oldest_ns ? oldest_ns : bpf->ages_read_ns) + after_ns;
	return from_ns > now_ns ? from_ns : 0;
}

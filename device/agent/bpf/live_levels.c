// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/tables.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"

/* A level counts as full at a quarter: creating the next one takes a while, and the target goes on meanwhile. */
#define FULL_SHARE 4
#define SAMPLED_BUCKETS 128u

static size_t level_bytes(const struct ml_bpf *bpf, ml_u32 level)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (ml_bpf_level_buckets(bpf, level) * sizeof(struct ml_bpf_bucket) + page - 1) & ~(page - 1);
}

static int add_level(struct ml_bpf *bpf)
{
	LIBBPF_OPTS(bpf_map_create_opts, options, .map_flags = BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	ml_u32 level = (ml_u32)bpf->code->n_levels;
	void *memory = MAP_FAILED;
	int fd;

	if (level == ML_BPF_LEVELS)
		return -1;
	fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "live_level", sizeof(ml_u32), sizeof(struct ml_bpf_bucket),
			    ml_bpf_level_buckets(bpf, level), &options);
	if (fd >= 0)
		memory = mmap(NULL, level_bytes(bpf, level), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED || bpf_map_update_elem(bpf->levels_fd, &level, &fd, BPF_ANY)) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	close(fd); /* the outer map and the mapping keep it */
	bpf->levels[level] = memory;
	__atomic_store_n(&bpf->code->n_levels, level + 1, __ATOMIC_RELEASE);
	return 0;
}

int ml_bpf_begin_levels(struct ml_bpf *bpf)
{
	return !bpf->is_old && add_level(bpf) ? ml_bpf_fail("could not make the live table", errno) : 0;
}

/* Used slots of a sample of the buckets; hashing has scattered the blocks evenly. */
static ml_u32 count_sample(const struct ml_bpf_bucket *buckets, ml_u32 n)
{
	ml_u32 used = 0;

	for (ml_u32 i = 0; i < SAMPLED_BUCKETS; i++)
		for (int slot = 0; slot < ML_BPF_BUCKET_SLOTS; slot++)
			used += buckets[i * (n / SAMPLED_BUCKETS)].address[slot] != 0;
	return used;
}

void ml_bpf_grow(struct ml_bpf *bpf, ml_u64 max_live)
{
	ml_u32 newest = (ml_u32)bpf->code->n_levels - 1;
	ml_u32 n = ml_bpf_level_buckets(bpf, newest);
	ml_u64 slots = (2ull * n - ml_bpf_level_buckets(bpf, 0)) * ML_BPF_BUCKET_SLOTS;

	if (bpf->is_old)
		return;
	if (count_sample(bpf->levels[newest], n) * FULL_SHARE < SAMPLED_BUCKETS * ML_BPF_BUCKET_SLOTS)
		return;
	/* Buckets overflow before the table is quite full. */
	if (slots < max_live + max_live / 4 && newest + 1 < ML_BPF_LEVELS && add_level(bpf))
		ml_blocks_log("the live table could not grow beyond %llu blocks", (unsigned long long)slots);
}

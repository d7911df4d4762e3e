// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/snapshot.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>

#include "agent/evidence/table_blocks.h"

#define BATCH 16384u

struct batch {
	struct ml_kernel_where where[BATCH];
	struct ml_kernel_block blocks[BATCH];
};

static int add_rows(struct ml_snapshot *snapshot, const struct batch *batch, ml_u32 count)
{
	int result = 0;

	for (ml_u32 i = 0; i < count && !result; i++) {
		const struct ml_kernel_block *block = &batch->blocks[i];
		struct ml_live_row row = { batch->where[i].address,
					   block->size,
					   block->timestamp_ns,
					   block->sequence,
					   block->key,
					   block->pid,
					   block->tid,
					   (ml_u32)block->function,
					   0 };

		result = ml_snapshot_add_live(snapshot, &row);
	}
	return result;
}

/* Other CPUs go on meanwhile. The kernel copies bucket by bucket, so that a block is in the batch of its bucket or in none. */
static int read_live(struct ml_snapshot *snapshot, struct batch *batch, int live_fd)
{
	ml_u32 position = 0;
	bool is_first = true;
	int error = 0;

	while (!error) {
		ml_u32 count = BATCH;

		error = bpf_map_lookup_batch(live_fd, is_first ? NULL : &position, &position, batch->where, batch->blocks,
					     &count, NULL);
		if (error && error != -ENOENT)
			return -1;
		if (add_rows(snapshot, batch, count))
			return -1;
		is_first = false;
	}
	return 0;
}

static int add_live(struct ml_snapshot *snapshot, const struct ml_kernel *kernel)
{
	struct batch *batch = calloc(1, sizeof(*batch));
	int result = batch ? read_live(snapshot, batch, kernel->live_fd) : -1;

	free(batch);
	return result;
}

/* A key covers the kernel's stack and the user's innermost return address, so one with a user's part is partial. */
static int add_keys(struct ml_snapshot *snapshot, const struct ml_kernel *kernel, const struct ml_kernel_evidence *evidence)
{
	int result = 0;

	for (ml_u32 slot = 0; slot < ML_KERNEL_KEY_SLOTS && !result; slot++) {
		const struct ml_kernel_key *key = &kernel->keys[slot];
		const struct ml_key_row row = {
			key->key,           key->alloc_objects, key->alloc_bytes,
			key->free_objects,  key->free_bytes,    evidence->sent[slot] & ML_KERNEL_SENT_USER ? ML_KEY_PARTIAL : 0,
			(ml_u32)key->owner,
		};

		if (key->key)
			result = ml_snapshot_add_key(snapshot, &row);
	}
	return result ? result : ml_snapshot_end_keys(snapshot);
}

int ml_kernel_snapshot(const struct ml_kernel *kernel, const struct ml_kernel_evidence *evidence, ml_u64 number)
{
	struct ml_snapshot *snapshot = ml_snapshot_begin(number);

	return ml_snapshot_end(snapshot, !snapshot || add_keys(snapshot, kernel, evidence) || add_live(snapshot, kernel));
}

int ml_kernel_status(const struct ml_kernel *kernel, const struct ml_kernel_evidence *evidence, ml_u64 evidence_records,
		     const ml_u64 *lost)
{
	struct ml_status status = { .untracked_frees = ml_kernel_counter(kernel, ML_KERNEL_UNTRACKED_FREES),
				    .evidence_records = evidence_records,
				    .alloc_objects = evidence->swept.alloc_objects,
				    .alloc_bytes = evidence->swept.alloc_bytes,
				    .free_objects = evidence->swept.free_objects,
				    .free_bytes = evidence->swept.free_bytes };

	for (ml_u32 slot = 0; slot < ML_KERNEL_KEY_SLOTS; slot++) {
		const struct ml_kernel_key *key = &kernel->keys[slot];

		ml_status_add(&status, key->alloc_objects, key->alloc_bytes, key->free_objects, key->free_bytes);
	}
	for (ml_u32 cause = 0; cause < ML_LOST_MAX; cause++)
		status.lost[cause] = ml_kernel_counter(kernel, cause) + lost[cause];
	status.lost[ML_LOST_RECURSION] += ml_kernel_missed(kernel);
	return ml_status_write(&status);
}

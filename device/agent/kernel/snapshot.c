// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/kernel/snapshot.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "agent/protocol/blocks.h"

#define ROWS 65536u /* of a chunk */
#define BATCH 16384u

struct live_columns {
	ml_u64 address[ROWS], size[ROWS], timestamp_ns[ROWS], sequence[ROWS], key[ROWS];
	ml_u32 pid[ROWS], tid[ROWS], function[ROWS], sample_bytes[ROWS];
};

struct live_writer {
	struct ml_live header;
	struct live_columns columns;
	struct ml_kernel_where where[BATCH];
	struct ml_kernel_block blocks[BATCH];
};

static int write_live(struct live_writer *writer, bool is_last)
{
	struct live_columns *c = &writer->columns;
	size_t n = writer->header.count;
	struct iovec parts[] = {
		{ &writer->header, sizeof(writer->header) },
		{ c->address, n * 8 },
		{ c->size, n * 8 },
		{ c->timestamp_ns, n * 8 },
		{ c->sequence, n * 8 },
		{ c->key, n * 8 },
		{ c->pid, n * 4 },
		{ c->tid, n * 4 },
		{ c->function, n * 4 },
		{ c->sample_bytes, n * 4 },
	};

	writer->header.last = is_last;
	if (ml_blocks_writev(ML_BLOCK_LIVE, parts, 10))
		return -1;
	writer->header.count = 0;
	return 0;
}

static int add_rows(struct live_writer *writer, ml_u32 count)
{
	struct live_columns *c = &writer->columns;

	if (writer->header.count + count > ROWS && write_live(writer, false))
		return -1;
	for (ml_u32 i = 0; i < count; i++) {
		const struct ml_kernel_block *block = &writer->blocks[i];
		ml_u32 row = writer->header.count++;

		c->address[row] = writer->where[i].address;
		c->size[row] = block->size;
		c->timestamp_ns[row] = block->timestamp_ns;
		c->sequence[row] = block->sequence;
		c->key[row] = block->key;
		c->pid[row] = block->pid;
		c->tid[row] = block->tid;
		c->function[row] = (ml_u32)block->function;
	}
	return 0;
}

/* Buckets as they are while others go on: a block is in the batch of its bucket or not at all. */
static int read_live(struct live_writer *writer, int live_fd)
{
	ml_u32 position = 0;
	bool is_first = true;
	int error = 0;

	while (!error) {
		ml_u32 count = BATCH;

		error = bpf_map_lookup_batch(live_fd, is_first ? NULL : &position, &position, writer->where, writer->blocks, &count,
					     NULL);
		if (error && error != -ENOENT)
			return -1;
		if (add_rows(writer, count))
			return -1;
		is_first = false;
	}
	return 0;
}

static int snapshot_live(const struct ml_kernel *kernel, ml_u64 number)
{
	struct live_writer *writer = calloc(1, sizeof(*writer));
	int result;

	if (!writer)
		return -1;
	writer->header = (struct ml_live){ .snapshot = number, .timestamp_ns = ml_clock_ns() };
	result = read_live(writer, kernel->live_fd) || write_live(writer, true) ? -1 : 0;
	free(writer);
	return result;
}

static int write_keys(struct ml_keys *header, ml_u64 *columns, bool is_last)
{
	struct iovec parts[8] = { { header, sizeof(*header) } };

	for (int i = 0; i < 7; i++)
		parts[1 + i] = (struct iovec){ columns + (size_t)i * ROWS, header->count * sizeof(ml_u64) };
	header->last = is_last;
	if (ml_blocks_writev(ML_BLOCK_KEYS, parts, 8))
		return -1;
	header->count = 0;
	return 0;
}

/* A key covers the kernel's stack and the place that the user's code called from: not the whole of its stack. */
static int snapshot_keys(const struct ml_kernel *kernel, const struct ml_kernel_evidence *evidence, ml_u64 number)
{
	struct ml_keys header = { .snapshot = number, .timestamp_ns = ml_clock_ns() };
	ml_u64 *columns = malloc(sizeof(ml_u64) * 7 * ROWS);
	int result = columns ? 0 : -1;

	for (ml_u32 slot = 0; slot < ML_KERNEL_KEY_SLOTS && !result; slot++) {
		const struct ml_kernel_key *key = &kernel->keys[slot];
		ml_u64 flags = evidence->told[slot] & ML_KERNEL_TOLD_USER ? ML_KEY_PARTIAL : 0;
		const ml_u64 row[7] = { key->key,	   key->alloc_objects, key->alloc_bytes, key->free_objects,
					key->free_bytes, flags,		     (ml_u32)key->owner };

		if (!key->key)
			continue;
		for (int i = 0; i < 7; i++)
			columns[(size_t)i * ROWS + header.count] = row[i];
		if (++header.count == ROWS)
			result = write_keys(&header, columns, false);
	}
	if (!result)
		result = write_keys(&header, columns, true);
	free(columns);
	return result;
}

int ml_kernel_snapshot(const struct ml_kernel *kernel, const struct ml_kernel_evidence *evidence, ml_u64 number)
{
	return snapshot_keys(kernel, evidence, number) || snapshot_live(kernel, number) ? -1 : 0;
}

int ml_kernel_status(const struct ml_kernel *kernel, const struct ml_kernel_evidence *evidence, ml_u64 evidence_records,
		     const ml_u64 *lost)
{
	struct ml_status status = {
		.timestamp_ns = ml_clock_ns(),
		.untracked_frees = ml_kernel_counter(kernel, ML_KERNEL_UNTRACKED_FREES),
		.evidence_records = evidence_records,
		.alloc_objects = evidence->swept.alloc_objects,
		.alloc_bytes = evidence->swept.alloc_bytes,
		.free_objects = evidence->swept.free_objects,
		.free_bytes = evidence->swept.free_bytes,
	};
	struct rusage usage;

	for (ml_u32 slot = 0; slot < ML_KERNEL_KEY_SLOTS; slot++) {
		const struct ml_kernel_key *key = &kernel->keys[slot];

		status.alloc_objects += key->alloc_objects;
		status.alloc_bytes += key->alloc_bytes;
		status.free_objects += key->free_objects;
		status.free_bytes += key->free_bytes;
	}
	for (ml_u32 cause = 0; cause < ML_LOST_MAX; cause++)
		status.lost[cause] = ml_kernel_counter(kernel, cause) + lost[cause];
	status.lost[ML_LOST_RECURSION] += ml_kernel_missed(kernel);
	getrusage(RUSAGE_SELF, &usage);
	status.tracer_cpu_ns = (ml_u64)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000u +
			       (ml_u64)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000u;
	return ml_blocks_write(ML_BLOCK_STATUS, &status, sizeof(status));
}

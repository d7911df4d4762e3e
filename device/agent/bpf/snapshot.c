// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/bpf/snapshot.h"

#include <bpf/bpf.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "agent/protocol/blocks.h"
#include "agent/bpf/images.h"
#include "agent/bpf/live_levels.h"

#define CHUNK_ROWS 65536u
#define LIVE_COLUMNS 9
#define KEY_COLUMNS 7

/* One chunk of the live table in columns, in the order of struct ml_live. */
struct live_columns {
	ml_u64 address[CHUNK_ROWS], size[CHUNK_ROWS], timestamp_ns[CHUNK_ROWS], sequence[CHUNK_ROWS], key[CHUNK_ROWS];
	ml_u32 pid[CHUNK_ROWS], tid[CHUNK_ROWS], function[CHUNK_ROWS], sample_bytes[CHUNK_ROWS];
};

struct live_writer {
	const struct ml_bpf *bpf;
	struct ml_live header;
	struct live_columns *columns;
	ml_u64 old_objects, old_bytes; /* of images that an exec replaced */
	ml_u32 epoch_pid, epoch;       /* the last looked up */
};

static int write_live(struct live_writer *writer, bool is_last)
{
	struct live_columns *c = writer->columns;
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
	if (ml_blocks_writev(ML_BLOCK_LIVE, parts, 1 + LIVE_COLUMNS))
		return -1;
	writer->header.count = 0;
	return 0;
}

static bool is_of_old_image(struct live_writer *writer, ml_u64 process)
{
	ml_u32 pid = (ml_u32)process;

	if (pid != writer->epoch_pid) {
		writer->epoch_pid = pid;
		writer->epoch = ml_bpf_epoch(writer->bpf, pid);
	}
	return (ml_u32)(process >> 32) != writer->epoch;
}

static int flush_when_full(struct live_writer *writer)
{
	return ++writer->header.count == CHUNK_ROWS ? write_live(writer, false) : 0;
}

static int add_row(struct live_writer *writer, ml_u64 address, const struct ml_bpf_block *block)
{
	struct live_columns *c = writer->columns;
	ml_u32 i = writer->header.count;

	if (is_of_old_image(writer, block->process)) {
		writer->old_objects++;
		writer->old_bytes += block->size;
		return 0;
	}
	c->address[i] = block->function < ML_FN_PAIR ? address : address & ML_PAIR_HANDLE_MASK;
	c->size[i] = block->size;
	c->timestamp_ns[i] = block->timestamp_ns;
	c->sequence[i] = block->sequence;
	c->key[i] = block->key_slot < ML_BPF_KEY_SLOTS ? writer->bpf->keys[block->key_slot].key : 0;
	c->pid[i] = (ml_u32)block->process;
	c->tid[i] = (ml_u32)(block->sequence >> ML_BPF_SEQUENCE_SHIFT);
	c->function[i] = block->function;
	c->sample_bytes[i] = 0;
	return flush_when_full(writer);
}

static int add_region(struct live_writer *writer, const struct ml_region *region)
{
	struct live_columns *c = writer->columns;
	ml_u32 i = writer->header.count;

	c->address[i] = region->start;
	c->size[i] = region->end - region->start;
	c->timestamp_ns[i] = region->timestamp_ns;
	c->sequence[i] = 0; /* a region may be what is left of one: its key speaks for it */
	c->key[i] = region->key;
	c->pid[i] = region->pid;
	c->tid[i] = region->tid;
	c->function[i] = region->function;
	c->sample_bytes[i] = 0;
	return flush_when_full(writer);
}

static int read_bucket(struct live_writer *writer, struct ml_bpf_bucket *bucket)
{
	for (int slot = 0; slot < ML_BPF_BUCKET_SLOTS; slot++) {
		ml_u64 address = __atomic_load_n(&bucket->address[slot], __ATOMIC_ACQUIRE);
		struct ml_bpf_block block = bucket->block[slot];

		/* Read twice: a block that changed hands meanwhile is not one of this instant. */
		if (address <= ML_BPF_BUSY || __atomic_load_n(&bucket->address[slot], __ATOMIC_ACQUIRE) != address)
			continue;
		if (add_row(writer, address, &block))
			return -1;
	}
	return 0;
}

static int read_levels(struct live_writer *writer)
{
	const struct ml_bpf *bpf = writer->bpf;

	for (ml_u32 level = 0; level < bpf->code->n_levels; level++)
		for (ml_u32 i = 0; i < ml_bpf_level_buckets(bpf, level); i++)
			if (read_bucket(writer, &bpf->levels[level][i]))
				return -1;
	return 0;
}

static int read_overflow(struct live_writer *writer)
{
	struct ml_bpf_address where, *previous = NULL;
	struct ml_bpf_block block;

	if (!writer->bpf->code->has_overflow)
		return 0;
	while (!bpf_map_get_next_key(writer->bpf->overflow_fd, previous, &where)) {
		if (!bpf_map_lookup_elem(writer->bpf->overflow_fd, &where, &block) &&
		    add_row(writer, where.address, &block))
			return -1;
		previous = &where;
	}
	return 0;
}

static int snapshot_live(const struct ml_bpf *bpf, const struct ml_regions *regions, ml_u64 number)
{
	struct live_writer writer = {
		.bpf = bpf,
		.header = { .snapshot = number, .timestamp_ns = ml_clock_ns() },
		.columns = malloc(sizeof(*writer.columns)),
	};
	int result = writer.columns && !read_levels(&writer) ? read_overflow(&writer) : -1;

	for (size_t i = 0; i < regions->count && !result; i++)
		result = add_region(&writer, &regions->rows[i]);
	if (!result)
		result = write_live(&writer, true);
	if (writer.old_objects)
		ml_blocks_log("%llu bytes in %llu blocks were live when an exec replaced their image",
			      (unsigned long long)writer.old_bytes, (unsigned long long)writer.old_objects);
	free(writer.columns);
	return result;
}

static int write_keys(struct ml_keys *header, ml_u64 *columns, bool is_last)
{
	struct iovec parts[1 + KEY_COLUMNS] = { { header, sizeof(*header) } };

	for (int i = 0; i < KEY_COLUMNS; i++)
		parts[1 + i] = (struct iovec){ columns + (size_t)i * CHUNK_ROWS, header->count * sizeof(ml_u64) };
	header->last = is_last;
	if (ml_blocks_writev(ML_BLOCK_KEYS, parts, 1 + KEY_COLUMNS))
		return -1;
	header->count = 0;
	return 0;
}

static int snapshot_keys(const struct ml_bpf *bpf, ml_u64 number)
{
	struct ml_keys header = { .snapshot = number, .timestamp_ns = ml_clock_ns() };
	ml_u64 *columns = malloc(sizeof(ml_u64) * KEY_COLUMNS * CHUNK_ROWS);
	int result = columns ? 0 : -1;

	for (ml_u32 slot = 0; slot < ML_BPF_KEY_SLOTS && !result; slot++) {
		const struct ml_bpf_key *key = &bpf->keys[slot];
		const ml_u64 row[KEY_COLUMNS] = { key->key,	     key->alloc_objects, key->alloc_bytes,
						  key->free_objects, key->free_bytes,	 (ml_u32)key->flags,
						  (ml_u32)key->process };

		if (!key->key)
			continue;
		for (int i = 0; i < KEY_COLUMNS; i++)
			columns[(size_t)i * CHUNK_ROWS + header.count] = row[i];
		if (++header.count == CHUNK_ROWS)
			result = write_keys(&header, columns, false);
	}
	if (!result)
		result = write_keys(&header, columns, true);
	free(columns);
	return result;
}

int ml_bpf_snapshot(const struct ml_bpf *bpf, const struct ml_regions *regions, ml_u64 number)
{
	/* Keys first: a block that is allocated in between has no key yet, never a key too many. */
	return snapshot_keys(bpf, number) || snapshot_live(bpf, regions, number) ? -1 : 0;
}

int ml_bpf_status(const struct ml_bpf *bpf, ml_u64 evidence_records, ml_u64 self_tests,
		   const ml_u64 *agent_lost)
{
	struct ml_status status = {
		.timestamp_ns = ml_clock_ns(),
		.untracked_frees = ml_bpf_counter(bpf, ML_BPF_UNTRACKED_FREES) - self_tests,
		.evidence_records = evidence_records,
		.alloc_objects = bpf->forgotten.alloc_objects,
		.alloc_bytes = bpf->forgotten.alloc_bytes,
		.free_objects = bpf->forgotten.free_objects,
		.free_bytes = bpf->forgotten.free_bytes,
	};
	struct rusage usage;

	for (ml_u32 slot = 0; slot < ML_BPF_KEY_SLOTS; slot++) {
		const struct ml_bpf_key *key = &bpf->keys[slot];

		status.alloc_objects += key->alloc_objects;
		status.alloc_bytes += key->alloc_bytes;
		status.free_objects += key->free_objects;
		status.free_bytes += key->free_bytes;
	}
	for (ml_u32 cause = 0; cause < ML_LOST_MAX; cause++)
		status.lost[cause] = ml_bpf_counter(bpf, cause) + agent_lost[cause];
	getrusage(RUSAGE_SELF, &usage);
	status.tracer_cpu_ns = (ml_u64)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000u +
			       (ml_u64)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000u;
	return ml_blocks_write(ML_BLOCK_STATUS, &status, sizeof(status));
}

// SPDX-License-Identifier: Apache-2.0

#include <bpf/bpf.h>
#include <stdlib.h>

#include "agent/bpf/images.h"
#include "agent/bpf/tables.h"
#include "agent/evidence/table_blocks.h"
#include "agent/protocol/blocks.h"

struct reader {
	const struct ml_bpf *bpf;
	struct ml_snapshot *snapshot;
	ml_u64 old_objects, old_bytes; /* of images that an exec replaced */
	ml_u32 epoch_pid, epoch;       /* the last looked up */
};

static bool is_of_old_image(struct reader *reader, ml_u64 process)
{
	ml_u32 pid = (ml_u32)process;

	if (pid != reader->epoch_pid) {
		reader->epoch_pid = pid;
		reader->epoch = ml_bpf_epoch(reader->bpf, pid);
	}
	return (ml_u32)(process >> 32) != reader->epoch;
}

static int add_row(struct reader *reader, ml_u64 address, const struct ml_bpf_block *block)
{
	struct ml_live_row row = {
		.address = block->function < ML_FN_PAIR ? address : address & ML_PAIR_HANDLE_MASK,
		.size = block->size,
		.timestamp_ns = block->timestamp_ns,
		.sequence = block->sequence,
		.key = block->key_slot < ML_BPF_KEY_SLOTS ? reader->bpf->keys[block->key_slot].key : 0,
		.pid = (ml_u32)block->process,
		.tid = (ml_u32)(block->sequence >> ML_BPF_SEQUENCE_SHIFT),
		.function = block->function,
	};

	if (!is_of_old_image(reader, block->process))
		return ml_snapshot_add_live(reader->snapshot, &row);
	reader->old_objects++;
	reader->old_bytes += block->size;
	return 0;
}

static int read_bucket(struct reader *reader, struct ml_bpf_bucket *bucket)
{
	for (int slot = 0; slot < ML_BPF_BUCKET_SLOTS; slot++) {
		ml_u64 address = __atomic_load_n(&bucket->address[slot], __ATOMIC_ACQUIRE);
		struct ml_bpf_block block = bucket->block[slot];

		/* Read twice: a slot that changed meanwhile holds parts of two blocks. */
		if (address <= ML_BPF_BUSY || __atomic_load_n(&bucket->address[slot], __ATOMIC_ACQUIRE) != address)
			continue;
		if (add_row(reader, address, &block))
			return -1;
	}
	return 0;
}

static int read_levels(struct reader *reader)
{
	const struct ml_bpf *bpf = reader->bpf;

	for (ml_u32 level = 0; level < bpf->code->n_levels; level++)
		for (ml_u32 i = 0; i < ml_bpf_level_buckets(bpf, level); i++)
			if (read_bucket(reader, &bpf->levels[level][i]))
				return -1;
	return 0;
}

static int read_overflow(struct reader *reader)
{
	struct ml_bpf_address where, *previous = NULL;
	struct ml_bpf_block block;

	if (!reader->bpf->code->has_overflow)
		return 0;
	while (!bpf_map_get_next_key(reader->bpf->overflow_fd, previous, &where)) {
		if (!bpf_map_lookup_elem(reader->bpf->overflow_fd, &where, &block) && add_row(reader, where.address, &block))
			return -1;
		previous = &where;
	}
	return 0;
}

static int add_keys(const struct reader *reader)
{
	int result = 0;

	for (ml_u32 slot = 0; slot < ML_BPF_KEY_SLOTS && !result; slot++) {
		const struct ml_bpf_key *key = &reader->bpf->keys[slot];
		const struct ml_key_row row = {
			key->key,
			key->alloc_objects,
			key->alloc_bytes,
			key->free_objects,
			key->free_bytes,
			(ml_u32)key->flags & ML_KEY_PARTIAL,
			(ml_u32)key->process,
		};

		if (key->key)
			result = ml_snapshot_add_key(reader->snapshot, &row);
	}
	return result ? result : ml_snapshot_end_keys(reader->snapshot);
}

int ml_bpf_snapshot(const struct ml_bpf *bpf, const struct ml_regions *regions, ml_u64 number)
{
	/* Removing the probes took a while, in which nothing was counted. */
	ml_u64 taken_ns = bpf->code->over_ns ? bpf->code->over_ns : ml_clock_ns();
	struct reader reader = { .bpf = bpf, .snapshot = ml_snapshot_begin(number, taken_ns) };
	int result = ml_snapshot_end(reader.snapshot, !reader.snapshot || add_keys(&reader) || read_levels(&reader) ||
							      read_overflow(&reader) ||
							      ml_snapshot_add_regions(reader.snapshot, regions));

	if (reader.old_objects)
		ml_blocks_log("%llu bytes in %llu blocks were live when an exec replaced their image",
			      (unsigned long long)reader.old_bytes, (unsigned long long)reader.old_objects);
	return result;
}

int ml_bpf_status(const struct ml_bpf *bpf, ml_u64 evidence_records, ml_u64 self_tests, const ml_u64 *agent_lost)
{
	struct ml_status status = {
		.untracked_frees = ml_bpf_counter(bpf, ML_BPF_UNTRACKED_FREES) - self_tests,
		.evidence_records = evidence_records,
		.alloc_objects = bpf->forgotten.alloc_objects,
		.alloc_bytes = bpf->forgotten.alloc_bytes,
		.free_objects = bpf->forgotten.free_objects,
		.free_bytes = bpf->forgotten.free_bytes,
	};

	for (ml_u32 slot = 0; slot < ML_BPF_KEY_SLOTS; slot++) {
		const struct ml_bpf_key *key = &bpf->keys[slot];

		ml_status_add(&status, key->alloc_objects, key->alloc_bytes, key->free_objects, key->free_bytes);
	}
	for (ml_u32 cause = 0; cause < ML_LOST_MAX; cause++)
		status.lost[cause] = ml_bpf_counter(bpf, cause) + agent_lost[cause];
	return ml_status_write(&status);
}

/* ---- the high-water mark ------------------------------------------------------------------------------ */

static ml_u64 read_word(const ml_u64 *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

/* The bytes that the key held at the mark of this generation. An update between the reads leaves a word of this generation. */
static ml_u64 held_at(const struct ml_bpf *bpf, ml_u32 slot, ml_u64 generation)
{
	const struct ml_bpf_key *key = &bpf->keys[slot];
	ml_u64 freed = read_word(&key->free_bytes), now = read_word(&key->alloc_bytes) - freed;
	ml_u64 word = read_word(&bpf->peak_words[slot]);

	return word >> ML_BPF_PEAK_BYTES_BITS == generation ? word & ML_BPF_PEAK_BYTES_MASK : now;
}

static int write_keys(const struct ml_bpf *bpf, struct ml_peak_rows *rows, ml_u64 generation)
{
	for (ml_u32 slot = 0; slot < ML_BPF_KEY_SLOTS; slot++)
		if (bpf->keys[slot].key && bpf->keys[slot].process == bpf->code->process &&
		    ml_peak_rows_add(rows, bpf->keys[slot].key, held_at(bpf, slot, generation)))
			return -1;
	return ml_peak_rows_end(rows);
}

int ml_bpf_peak_write(struct ml_bpf *bpf)
{
	ml_u64 generation = bpf->peak ? read_word(&bpf->peak->generation) : 0, mark;
	struct ml_peak_rows *rows;
	int result;

	/* A mark that stopped rising because its generations ran out is not the peak. */
	if (generation == bpf->peak_sent || generation >= ML_BPF_PEAK_GENERATION_MAX)
		return 0;
	mark = read_word(&bpf->peak->mark);
	rows = mark ? calloc(1, sizeof(*rows)) : NULL;
	if (!rows)
		return 0; /* the host keeps the earlier mark, if any */
	rows->head = (struct ml_high_water){
		.timestamp_ns = read_word(&bpf->peak->timestamp_ns),
		.mark = mark,
		.bound_bytes = mark >> ML_BPF_PEAK_STEP_SHIFT,
		.pid = (ml_u32)bpf->code->process,
	};
	result = write_keys(bpf, rows, generation);
	free(rows);
	bpf->peak_sent = generation;
	return result;
}

bool ml_bpf_was_in_peak(void *context, ml_u64 key)
{
	const struct ml_bpf *bpf = context;
	const struct ml_bpf_key *entry = bpf->peak ? ml_bpf_find_key(bpf, key) : NULL;

	return entry && held_at(bpf, (ml_u32)(entry - bpf->keys), read_word(&bpf->peak->generation)) >
				read_word(&bpf->peak->mark) >> ML_PEAK_PART_SHIFT;
}

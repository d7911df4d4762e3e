// SPDX-License-Identifier: Apache-2.0

#include <bpf/bpf.h>
#include <stdlib.h>

#include "agent/bpf/images.h"
#include "agent/bpf/tables.h"
#include "agent/process/thread_states.h"
#include "agent/protocol/extend.h"

struct known_process {
	ml_u32 pid, epoch;
	bool has_ended;
};

struct known_processes {
	struct known_process *rows; /* by pid */
	size_t n, room;
	ml_u32 newest_epoch;
	bool has_ended; /* any */
};

static int compare(const void *left, const void *right)
{
	const struct known_process *a = left, *b = right;

	return (a->pid > b->pid) - (a->pid < b->pid);
}

static int append(struct known_processes *known, struct known_process row)
{
	if (!ML_EXTEND(known->rows, known->n, known->room))
		return -1;
	known->rows[known->n++] = row;
	known->has_ended |= row.has_ended;
	if (row.epoch > known->newest_epoch)
		known->newest_epoch = row.epoch;
	return 0;
}

/* Processes that appear meanwhile may be missing; their blocks are kept. */
static int read_processes(const struct ml_bpf *bpf, struct known_processes *known)
{
	struct ml_bpf_process process;
	ml_u32 pid, *previous = NULL;

	while (!bpf_map_get_next_key(bpf->processes_fd, previous, &pid)) {
		if (!bpf_map_lookup_elem(bpf->processes_fd, &pid, &process) &&
		    append(known, (struct known_process){ pid, process.epoch, ml_process_has_ended(pid, -1) }))
			return -1;
		previous = &pid;
	}
	qsort(known->rows, known->n, sizeof(*known->rows), compare);
	return 0;
}

/* Epochs grow: a lower one belongs to a program that an exec or the reuse of the pid replaced. */
static bool is_over(const struct known_processes *known, ml_u64 process)
{
	struct known_process wanted = { .pid = (ml_u32)process };
	const struct known_process *found = bsearch(&wanted, known->rows, known->n, sizeof(wanted), compare);
	ml_u32 epoch = (ml_u32)(process >> 32);

	return process && found && (epoch < found->epoch || (epoch == found->epoch && found->has_ended));
}

static void count_free(struct ml_bpf *bpf, const struct ml_bpf_block *block)
{
	bpf->ended.objects++;
	bpf->ended.bytes += block->size;
	if (block->key_slot >= ML_BPF_KEY_SLOTS)
		return;
	__atomic_fetch_add(&bpf->keys[block->key_slot].free_objects, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&bpf->keys[block->key_slot].free_bytes, block->size, __ATOMIC_RELAXED);
}

/* No program removes blocks of an ended process: the slot stays as it is until it is emptied here. */
static void sweep_bucket(struct ml_bpf *bpf, const struct known_processes *known, struct ml_bpf_bucket *bucket)
{
	for (int slot = 0; slot < ML_BPF_BUCKET_SLOTS; slot++) {
		ml_u64 address = __atomic_load_n(&bucket->address[slot], __ATOMIC_ACQUIRE);
		struct ml_bpf_block block = bucket->block[slot];

		if (address > ML_BPF_BUSY && is_over(known, block.process) &&
		    __atomic_compare_exchange_n(&bucket->address[slot], &address, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			count_free(bpf, &block);
	}
}

static void sweep_overflow(struct ml_bpf *bpf, const struct known_processes *known)
{
	struct ml_bpf_address where, next;
	struct ml_bpf_block block;
	bool is_more = !bpf_map_get_next_key(bpf->overflow_fd, NULL, &next);

	while (is_more) {
		where = next;
		is_more = !bpf_map_get_next_key(bpf->overflow_fd, &where, &next); /* before it is deleted */
		if (is_over(known, where.process) && !bpf_map_lookup_elem(bpf->overflow_fd, &where, &block) &&
		    !bpf_map_delete_elem(bpf->overflow_fd, &where))
			count_free(bpf, &block);
	}
}

/* Called only when no block refers to the key. */
static void remove_key(struct ml_bpf *bpf, struct ml_bpf_key *key)
{
	bpf->forgotten.alloc_objects += key->alloc_objects;
	bpf->forgotten.alloc_bytes += key->alloc_bytes;
	bpf->forgotten.free_objects += key->free_objects;
	bpf->forgotten.free_bytes += key->free_bytes;
	key->alloc_objects = key->alloc_bytes = key->free_objects = key->free_bytes = key->next_due = 0;
	key->process = key->flags = 0;
	__atomic_store_n(&key->key, 0, __ATOMIC_SEQ_CST); /* last: from here on the slot can be reused */
}

static void sweep(struct ml_bpf *bpf, const struct known_processes *known)
{
	for (ml_u32 level = 0; level < bpf->code->n_levels; level++)
		for (ml_u32 i = 0; i < ml_bpf_level_buckets(bpf, level); i++)
			sweep_bucket(bpf, known, &bpf->levels[level][i]);
	if (bpf->code->has_overflow)
		sweep_overflow(bpf, known);
	bpf->ended.n_keys = 0;
	for (ml_u32 slot = 0; slot < ML_BPF_KEY_SLOTS; slot++) {
		if (bpf->keys[slot].key && is_over(known, bpf->keys[slot].process))
			remove_key(bpf, &bpf->keys[slot]);
		bpf->ended.n_keys += bpf->keys[slot].key != 0;
	}
}

void ml_bpf_remove_ended(struct ml_bpf *bpf)
{
	struct known_processes known = { 0 };

	if (!read_processes(bpf, &known) && (known.has_ended || known.newest_epoch > bpf->ended.newest_epoch)) {
		sweep(bpf, &known);
		bpf->ended.newest_epoch = known.newest_epoch;
		for (const struct known_process *row = known.rows; row < known.rows + known.n; row++)
			if (row->has_ended && ml_bpf_epoch(bpf, row->pid) == row->epoch) /* else the pid is a new process's */
				bpf_map_delete_elem(bpf->processes_fd, &row->pid);
	}
	free(known.rows);
}

// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/evidence.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/protocol/blocks.h"
#include "agent/evidence/table_blocks.h"

/* Of records without a user's part: above those of all allocations, which begin with a CPU's number. */
#define ALONE_SEQUENCE (1ull << 62)
#define RECORD_MAX (sizeof(struct ml_evidence) + 64 * 8 + ML_STACK_BYTES_MAX + 8 + sizeof(struct ml_kernel_stack))

static bool is_stack_there(const struct ml_kernel_evidence *evidence, ml_u64 hash)
{
	static struct ml_kernel_stack stack;

	return !bpf_map_lookup_elem(evidence->kernel->stacks_fd, &hash, &stack);
}

/* The frames behind `at`, of struct ml_frame_chain. Returns their bytes. is_interrupt: the user's code is not what led there. */
static ml_u32 put_chain(struct ml_kernel_evidence *evidence, ml_u64 hash, ml_u8 *at, bool *is_interrupt)
{
	static struct ml_kernel_stack stack;
	struct ml_frame_chain *chain = (void *)at;

	*is_interrupt = false;
	if (bpf_map_lookup_elem(evidence->kernel->stacks_fd, &hash, &stack) || stack.n > ML_KERNEL_FRAMES)
		stack.n = 0;
	*chain = (struct ml_frame_chain){ 0, 0 };
	for (ml_u64 i = 0; i < stack.n; i++) {
		/* Return addresses all: one may lie behind its function's last instruction. */
		const char *function = ml_kernel_symbols_find(evidence->symbols, stack.addresses[i] - 1);

		if (!chain->n_frames && ml_kernel_has_names(evidence->symbols) && ml_kernel_is_tracer(function))
			continue;
		ml_kernel_symbols_use(evidence->symbols, stack.addresses[i] - 1);
		chain->addresses[chain->n_frames++] = stack.addresses[i];
		*is_interrupt |= ml_kernel_is_interrupt(function);
	}
	return ml_frame_chain_bytes(chain->n_frames);
}

int ml_kernel_evidence_add(struct ml_kernel_evidence *evidence, const struct ml_evidence *record, size_t bytes)
{
	static _Alignas(8) ml_u8 whole[RECORD_MAX];
	struct ml_evidence *head = (void *)whole;
	ml_u64 used = (sizeof(*record) + record->n_registers * 8ull + record->stack_bytes + 7) & ~7ull;
	ml_u32 slot = ml_kernel_find_key(evidence->kernel, record->key);
	bool is_interrupt;

	if (used > bytes || used > RECORD_MAX - 8 - sizeof(struct ml_kernel_stack) || slot == ML_KERNEL_KEY_SLOTS)
		return -1;
	if (!is_stack_there(evidence, evidence->kernel->keys[slot].stack)) {
		/* Its block was given back since, and then its stack was given up. */
		__atomic_store_n(&evidence->kernel->keys[slot].next_due, 0, __ATOMIC_SEQ_CST);
		return 0;
	}
	memset(whole + used - 8, 0, 8);
	memcpy(whole, record, sizeof(*record) + record->n_registers * 8ull + record->stack_bytes);
	head->flags |= ML_EVIDENCE_FRAME_CHAIN | ML_EVIDENCE_CHAIN_IS_KERNEL;
	head->record_bytes =
		(ml_u32)used + put_chain(evidence, evidence->kernel->keys[slot].stack, whole + used, &is_interrupt);
	if (is_interrupt)
		return 0;
	if (ml_nursery_add(evidence->nursery, head))
		return -1;
	evidence->sent[slot] |= ML_KERNEL_SENT_USER;
	return 1;
}

static int write_alone(struct ml_kernel_evidence *evidence, const struct ml_kernel_key *key)
{
	static _Alignas(8) ml_u8 whole[sizeof(struct ml_evidence) + 8 + sizeof(struct ml_kernel_stack)];
	struct ml_evidence *head = (void *)whole;
	bool is_interrupt;

	*head = (struct ml_evidence){ .flags = ML_EVIDENCE_AT_RETURN | ML_EVIDENCE_FRAME_CHAIN | ML_EVIDENCE_CHAIN_IS_KERNEL,
				      .sequence = ALONE_SEQUENCE + ++evidence->n_alone,
				      .timestamp_ns = ml_clock_ns(),
				      .key = key->key,
				      .pid = (ml_u32)key->owner,
				      .function = (ml_u16)(key->owner >> 32) };
	head->record_bytes = (ml_u32)sizeof(*head) + put_chain(evidence, key->stack, whole + sizeof(*head), &is_interrupt);
	return ml_blocks_write(ML_BLOCK_EVIDENCE, whole, head->record_bytes);
}

int ml_kernel_evidence_complete(struct ml_kernel_evidence *evidence)
{
	for (ml_u32 slot = 0; slot < ML_KERNEL_KEY_SLOTS; slot++) {
		const struct ml_kernel_key *key = &evidence->kernel->keys[slot];

		if (!key->key || key->alloc_objects == key->free_objects || evidence->sent[slot])
			continue;
		if (write_alone(evidence, key))
			return -1;
		evidence->sent[slot] |= ML_KERNEL_SENT_STACK;
	}
	return ml_kernel_symbols_write(evidence->symbols);
}

static void give_up(struct ml_kernel_evidence *evidence, ml_u32 slot)
{
	struct ml_kernel_key *key = &evidence->kernel->keys[slot];

	evidence->swept.alloc_objects += key->alloc_objects;
	evidence->swept.alloc_bytes += key->alloc_bytes;
	evidence->swept.free_objects += key->free_objects;
	evidence->swept.free_bytes += key->free_bytes;
	key->alloc_objects = key->alloc_bytes = key->free_objects = key->free_bytes = key->next_due = 0;
	evidence->last_objects[slot] = 0;
	evidence->sent[slot] = 0;
	__atomic_store_n(&key->key, 0, __ATOMIC_SEQ_CST); /* last: from here on it is another's */
}

void ml_kernel_evidence_sweep(struct ml_kernel_evidence *evidence)
{
	ml_u32 used = 0;

	for (ml_u32 slot = 0; slot < ML_KERNEL_KEY_SLOTS; slot++)
		used += evidence->kernel->keys[slot].key != 0;
	for (ml_u32 slot = 0; slot < ML_KERNEL_KEY_SLOTS && used > ML_KERNEL_KEY_SLOTS / 4; slot++) {
		const struct ml_kernel_key *key = &evidence->kernel->keys[slot];
		ml_u64 objects = key->alloc_objects;

		if (key->key && objects && objects == key->free_objects && objects == evidence->last_objects[slot])
			give_up(evidence, slot);
		else
			evidence->last_objects[slot] = objects;
	}
}

ml_u64 ml_kernel_live_objects(void *context, ml_u64 key, ml_u64 *allocated)
{
	const struct ml_kernel_evidence *evidence = context;
	ml_u32 slot = ml_kernel_find_key(evidence->kernel, key);
	const struct ml_kernel_key *row = &evidence->kernel->keys[slot];

	*allocated = 0; /* evidence of freed blocks is not wanted */
	return slot == ML_KERNEL_KEY_SLOTS ? 0 : row->alloc_objects - row->free_objects;
}

void ml_kernel_ask_again(void *context, ml_u64 key)
{
	struct ml_kernel_evidence *evidence = context;
	ml_u32 slot = ml_kernel_find_key(evidence->kernel, key);

	if (slot == ML_KERNEL_KEY_SLOTS)
		return;
	evidence->sent[slot] &= (ml_u8)~ML_KERNEL_SENT_USER;
	__atomic_store_n(&evidence->kernel->keys[slot].next_due, 0, __ATOMIC_SEQ_CST);
}

/* ---- snapshots ---------------------------------------------------------------------------------------- */

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
	struct ml_snapshot *snapshot = ml_snapshot_begin(number, ml_clock_ns());

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

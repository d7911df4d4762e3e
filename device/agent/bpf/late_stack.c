// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/bpf/late_stack.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "agent/protocol/blocks.h"
#include "agent/process/signature_mask.h"

/* Head, at most 64 registers, a slice. */
#define RECORD_BYTES (sizeof(struct ml_evidence) + 64 * 8 + ML_STACK_BYTES_MAX + 8)

int ml_late_stacks_create(struct ml_late_stacks *late)
{
	late->memory = malloc(ML_ABOVE_BYTES_MAX);
	late->record = malloc(RECORD_BYTES + ml_stack_above_bytes(ML_ABOVE_WORDS_MAX));
	late->signature_mask = ml_signature_mask();
	if (late->memory && late->record)
		return 0;
	ml_late_stacks_destroy(late);
	return -1;
}

void ml_late_stacks_destroy(struct ml_late_stacks *late)
{
	free(late->memory);
	free(late->record);
	late->memory = late->record = NULL;
}

static struct ml_bpf_above *slot_of(struct ml_late_stacks *late, ml_u64 sequence)
{
	return &late->announced[(sequence ^ sequence >> ML_BPF_SEQUENCE_SHIFT) % ML_LATE_ANNOUNCED];
}

void ml_late_stacks_announce(struct ml_late_stacks *late, const struct ml_bpf_above *above)
{
	*slot_of(late, above->sequence) = *above;
}

/* Whether no return address above the slice is replaced by a trampoline of a return probe. */
static bool shows_all_returns(const struct ml_evidence *record, ml_u64 boundary)
{
	if (record->flags & ML_EVIDENCE_FIXUPS_CUT || record->n_fixups > ML_FIXUPS)
		return false;
	for (int i = 0; i < record->n_fixups; i++)
		if (record->fixups[i].slot_address >= boundary)
			return false;
	return true;
}

static bool is_within(const struct ml_bpf_above *above, ml_u64 boundary)
{
	return above->begin < boundary && boundary - above->begin < above->bytes && above->bytes <= ML_ABOVE_BYTES_MAX &&
	       above->begin % 8 == 0 && above->bytes % 8 == 0 && boundary % 8 == 0;
}

static bool read_again(struct ml_late_stacks *late, ml_u32 pid, const struct ml_bpf_above *above)
{
	struct iovec here = { late->memory, above->bytes }, there = { (void *)(unsigned long)above->begin, above->bytes };

	if (process_vm_readv((pid_t)pid, &here, 1, &there, 1, 0) == (ssize_t)above->bytes)
		return true;
	late->error = errno;
	late->n_unreadable++;
	return false;
}

/*
 * Gathers the words above the boundary that may lead to the next frame, and compares the two digests. Each digest covers more than
 * is taken: such words are pointers, and code that became known since changes the first digest only.
 */
static bool gather(const struct ml_late_stacks *late, const struct ml_bpf_code *code, const struct ml_bpf_above *digest,
		   ml_u64 boundary, struct ml_stack_above *into, ml_u32 *offsets)
{
	const ml_u64 *words = (const void *)late->memory;
	ml_u64 leading = 0, pointers = 0;

	for (ml_u64 i = 0; i < digest->bytes / 8; i++) {
		ml_u64 at = digest->begin + 8 * i, address = ml_strip_signature(words[i], late->signature_mask);

		if (!ml_bpf_is_pointer(address))
			continue;
		pointers = ml_bpf_above_mix(pointers, at, words[i]);
		if (!ml_bpf_is_leading(digest, code, words[i], address))
			continue;
		leading = ml_bpf_above_mix(leading, at, words[i]);
		if (at < boundary || into->n_words == ML_ABOVE_WORDS_MAX)
			continue;
		offsets[into->n_words] = (ml_u32)((at - boundary) / 8);
		into->words[into->n_words++] = words[i];
	}
	return leading == digest->leading || pointers == digest->pointers;
}

/* Appends the words to a copy of the record, of which `head` bytes are used. */
static const struct ml_evidence *append(struct ml_late_stacks *late, const struct ml_bpf_code *code,
					const struct ml_evidence *record, const struct ml_bpf_above *digest, ml_u32 head)
{
	ml_u64 boundary = record->stack_address + record->stack_bytes;
	struct ml_evidence *copy = (void *)late->record;
	struct ml_stack_above *above = (void *)(late->record + head);
	ml_u32 *offsets = (void *)&above->words[ML_ABOVE_WORDS_MAX]; /* moved when n_words is known */

	*above = (struct ml_stack_above){ .reach_bytes = (ml_u32)(digest->begin + digest->bytes - boundary) };
	if (!gather(late, code, digest, boundary, above, offsets)) {
		late->n_changed++;
		return record;
	}
	if (!above->n_words)
		return record;
	if (above->n_words == ML_ABOVE_WORDS_MAX) /* there may be more */
		above->reach_bytes = 8 * (offsets[ML_ABOVE_WORDS_MAX - 1] + 1);
	memcpy(copy, record, head);
	memmove(ml_stack_above_offsets(above), offsets, above->n_words * sizeof(*offsets));
	if (above->n_words % 2)
		ml_stack_above_offsets(above)[above->n_words] = 0;
	copy->flags |= ML_EVIDENCE_STACK_ABOVE | ML_EVIDENCE_ABOVE_LATE;
	copy->record_bytes = head + ml_stack_above_bytes(above->n_words);
	late->n_completed++;
	return copy;
}

const struct ml_evidence *ml_late_stacks_complete(struct ml_late_stacks *late, const struct ml_bpf_code *code,
						  const struct ml_evidence *as_sent, const struct ml_evidence *record,
						  ml_u64 bytes)
{
	struct ml_bpf_above *digest = slot_of(late, record->sequence), above = *digest;
	ml_u64 boundary = record->stack_address + record->stack_bytes;
	ml_u64 head = sizeof(*record) + record->n_registers * sizeof(ml_u64) + record->stack_bytes;

	if (!late->memory || above.sequence != record->sequence)
		return record;
	digest->sequence = 0;
	if (record->flags & ML_EVIDENCE_STACK_SPARSE || !record->stack_bytes || head > bytes || head > RECORD_BYTES ||
	    !is_within(&above, boundary) || !shows_all_returns(as_sent, boundary) || !read_again(late, record->pid, &above))
		return record;
	return append(late, code, record, &above, (ml_u32)head);
}

void ml_late_stacks_log(const struct ml_late_stacks *late)
{
	ml_u64 n = late->n_completed + late->n_changed + late->n_unreadable;

	if (!n)
		return;
	ml_blocks_log("%llu stacks were longer than their slices: %llu were completed later, %llu had changed by then%s%s",
		      (unsigned long long)n, (unsigned long long)late->n_completed, (unsigned long long)late->n_changed,
		      late->n_unreadable ? ", others could not be read: " : "",
		      late->n_unreadable ? strerror(late->error) : "");
}

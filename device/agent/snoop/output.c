// SPDX-License-Identifier: Apache-2.0
#include "agent/snoop/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"

/* Captures of one call at most: what the programs send, and paths. */
#define CALL_DATA_MAX (2u * ML_SNOOP_DATA + ML_SNOOP_CAPTURES * 4200u)
/* The payload of one CALL_STATISTICS block: a function takes 10 KB at most. */
#define STATISTICS_BYTES (1u << 20)
#define FUNCTION_BYTES_MAX (sizeof(struct ml_call_statistics) + ML_CALL_BUCKETS * sizeof(struct ml_call_bucket))

int ml_call_batch_write(struct ml_call_batch *batch)
{
	struct ml_calls head = { batch->count, batch->data_bytes };
	const struct iovec parts[] = { { &head, sizeof(head) },
				       { batch->calls, batch->count * sizeof(batch->calls[0]) },
				       { batch->data, batch->data_bytes } };

	batch->count = 0;
	batch->data_bytes = 0;
	return head.count ? ml_blocks_writev(ML_BLOCK_CALLS, parts, 3) : 0;
}

/* The file behind a descriptor of the process, by now: it may have been closed since, or be another one. */
static void add_path(struct ml_call_batch *batch, struct ml_call *call, ml_u32 argument, ml_u64 fd)
{
	struct ml_call_capture head = { .argument = (ml_u16)argument };
	ml_u8 *at = batch->data + batch->data_bytes;
	char link[64], path[4096];
	ssize_t n;

	if ((ml_s32)fd < 0)
		return;
	snprintf(link, sizeof(link), "/proc/%u/fd/%d", call->tgid, (ml_s32)fd);
	n = readlink(link, path, sizeof(path));
	if (n < 0)
		head.error = errno;
	else
		head.bytes = (ml_u16)n;
	memcpy(at, &head, sizeof(head));
	memset(at + sizeof(head), 0, (head.bytes + 7u) & ~7u);
	memcpy(at + sizeof(head), path, head.bytes);
	batch->data_bytes += (ml_u32)sizeof(head) + ((head.bytes + 7u) & ~7u);
	call->n_captures++;
}

static void add_paths(struct ml_call_batch *batch, struct ml_call *call)
{
	const struct ml_snoop_function *function = &batch->config->functions[call->function];

	for (ml_u32 i = 0; i < function->n_captures && call->type != ML_CALL_UNPAIRED; i++) {
		const struct ml_snoop_capture *capture = &function->captures[i];
		bool is_return = capture->argument == ML_CALL_RETURN;

		if (capture->kind == ML_SNOOP_PATH && is_return == (call->type == ML_CALL_EXIT))
			add_path(batch, call, capture->argument, call->values[is_return ? 0 : capture->argument]);
	}
}

void ml_call_batch_add(struct ml_call_batch *batch, const void *record, size_t bytes)
{
	struct ml_call *call = &batch->calls[batch->count];
	size_t data_bytes = bytes - sizeof(*call);

	if (bytes < sizeof(*call) || data_bytes > ML_SNOOP_DATA)
		return;
	memcpy(call, record, sizeof(*call));
	if (call->function >= batch->config->n_functions)
		return;
	call->data_offset = batch->data_bytes;
	memcpy(batch->data + batch->data_bytes, (const ml_u8 *)record + sizeof(*call), data_bytes);
	batch->data_bytes += (ml_u32)data_bytes;
	add_paths(batch, call);
	if (call->type == ML_CALL_EXIT)
		memset(&call->values[2], 0, sizeof(call->values) - 2 * sizeof(call->values[0]));
	batch->count++;
}

bool ml_call_batch_is_full(const struct ml_call_batch *batch)
{
	return batch->count == ML_CALL_BATCH || batch->data_bytes > sizeof(batch->data) - CALL_DATA_MAX;
}

/* ---- stacks -------------------------------------------------------------------------------------- */

/*
 * Restores the words that return probes replaced, the innermost first: of a tail call, the caller's fixup has the address, and comes
 * last.
 */
static void undo_trampolines(const struct ml_evidence *record, const struct ml_fixup *fixups, ml_u32 n, ml_u8 *stack)
{
	for (ml_u32 i = 0; i < n; i++) {
		ml_u64 offset = fixups[i].slot_address - record->stack_address;

		if (offset <= record->stack_bytes && record->stack_bytes - offset >= sizeof(ml_u64))
			memcpy(stack + offset, &fixups[i].value, sizeof(ml_u64));
	}
}

/* As struct ml_snoop_stack of the programs: evidence, registers, ML_SNOOP_FIXUPS fixups, the stack. */
int ml_call_stacks_add(struct ml_call_stacks *stacks, const void *record, size_t bytes)
{
	const struct ml_evidence *evidence = record;
	size_t registers_bytes, head_bytes, kept_bytes;
	struct ml_evidence *kept;
	ml_u8 *stack;

	if (bytes < sizeof(*evidence))
		return 0;
	registers_bytes = evidence->n_registers * sizeof(ml_u64);
	head_bytes = sizeof(*evidence) + registers_bytes + ML_SNOOP_FIXUPS * sizeof(struct ml_fixup);
	if (head_bytes + evidence->stack_bytes > bytes || evidence->n_fixups > ML_SNOOP_FIXUPS)
		return 0;
	kept_bytes = sizeof(*evidence) + registers_bytes + ((evidence->stack_bytes + 7) & ~7u);
	if (stacks->bytes + kept_bytes > ML_CALL_STACKS_BYTES && ml_call_stacks_write(stacks))
		return -1;
	kept = (struct ml_evidence *)(stacks->records + stacks->bytes);
	stack = (ml_u8 *)(kept + 1) + registers_bytes;
	memcpy(kept, evidence, sizeof(*evidence) + registers_bytes);
	memcpy(stack, (const ml_u8 *)record + head_bytes, evidence->stack_bytes);
	if (evidence->n_fixups)
		undo_trampolines(evidence, (const void *)((const ml_u8 *)(evidence + 1) + registers_bytes), evidence->n_fixups,
				 stack);
	kept->record_bytes = (ml_u32)kept_bytes;
	kept->n_fixups = 0;
	stacks->bytes += kept_bytes;
	return 0;
}

int ml_call_stacks_write(struct ml_call_stacks *stacks)
{
	size_t bytes = stacks->bytes;

	stacks->bytes = 0;
	return bytes ? ml_blocks_write(ML_BLOCK_EVIDENCE, stacks->records, bytes) : 0;
}

/* ---- statistics ---------------------------------------------------------------------------------- */

/* Appends a function's numbers to a block; returns their bytes. */
static size_t add_function(ml_u8 *at, ml_u32 number, const struct ml_snoop_statistics *counted)
{
	struct ml_call_statistics *row = (struct ml_call_statistics *)at;
	struct ml_call_bucket *buckets = (struct ml_call_bucket *)(row + 1);

	*row = (struct ml_call_statistics){ .function = number,
					    .calls = counted->calls,
					    .returns = counted->returns,
					    .unpaired = counted->unpaired,
					    .filtered = counted->filtered,
					    .hidden = counted->hidden,
					    .total_ns = counted->total_ns,
					    .min_ns = counted->returns ? ~counted->max_inverted_ns : 0,
					    .max_ns = counted->max_ns };
	for (ml_u32 i = 0; i < ML_CALL_BUCKETS; i++)
		if (counted->buckets[i])
			buckets[row->n_buckets++] = (struct ml_call_bucket){ .bucket = i, .count = counted->buckets[i] };
	return sizeof(*row) + row->n_buckets * sizeof(*buckets);
}

static int write_part(struct ml_call_totals *head, const ml_u8 *rows, size_t bytes)
{
	const struct iovec parts[] = { { head, sizeof(*head) }, { (void *)rows, bytes } };
	int result = ml_blocks_writev(ML_BLOCK_CALL_STATISTICS, parts, 2);

	head->count = 0;
	return result;
}

int ml_call_statistics_write(const struct ml_snoop *snoop, bool is_final)
{
	struct ml_call_totals head = { .timestamp_ns = ml_clock_ns(), .final = is_final };
	ml_u8 *rows = malloc(STATISTICS_BYTES);
	int result = rows ? 0 : -1;
	size_t bytes = 0;

	for (ml_u32 i = 0; i < snoop->n_functions && !result; i++) {
		if (bytes + FUNCTION_BYTES_MAX > STATISTICS_BYTES) {
			result = write_part(&head, rows, bytes);
			bytes = 0;
		}
		bytes += add_function(rows + bytes, i, &snoop->statistics[i]);
		head.count++;
	}
	if (!result)
		result = write_part(&head, rows, bytes);
	free(rows);
	return result;
}

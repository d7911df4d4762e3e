// SPDX-License-Identifier: Apache-2.0
#include "agent/snoop/stacks.h"

#include <stdlib.h>
#include <string.h>

#include "bpf/snoop/tables.h"
#include "agent/protocol/blocks.h"

#define BATCH_BYTES (4u << 20)

struct ml_call_stacks {
	size_t bytes;
	_Alignas(8) ml_u8 records[BATCH_BYTES];
};

struct ml_call_stacks *ml_call_stacks_create(void)
{
	return calloc(1, sizeof(struct ml_call_stacks));
}

void ml_call_stacks_destroy(struct ml_call_stacks *stacks)
{
	free(stacks);
}

/*
 * What return probes have put on the stack is undone: innermost first, so that of a tail call the caller's, which has the
 * address, comes last.
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
	if (stacks->bytes + kept_bytes > BATCH_BYTES && ml_call_stacks_write(stacks))
		return -1;
	kept = (struct ml_evidence *)(stacks->records + stacks->bytes);
	stack = (ml_u8 *)(kept + 1) + registers_bytes;
	memcpy(kept, evidence, sizeof(*evidence) + registers_bytes);
	memcpy(stack, (const ml_u8 *)record + head_bytes, evidence->stack_bytes);
	if (evidence->n_fixups)
		undo_trampolines(evidence, (const void *)((const ml_u8 *)(evidence + 1) + registers_bytes), evidence->n_fixups, stack);
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

// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/interrupted_stack.h"

#include <string.h>

static ml_u32 slot_of(ml_u64 sequence)
{
	return (sequence ^ sequence >> ML_BPF_SEQUENCE_SHIFT) % ML_INTERRUPTED_KEPT;
}

static ml_u64 head_of(const struct ml_evidence *record)
{
	return sizeof(*record) + record->n_registers * sizeof(ml_u64);
}

void ml_interrupted_stacks_keep(struct ml_interrupted_stacks *stacks, const struct ml_evidence *record)
{
	ml_u32 slot = slot_of(record->sequence), bytes = record->stack_bytes & ~7u;

	if (record->stack_bytes > ML_STACK_BYTES_MAX)
		return;
	stacks->kept[slot].sequence = record->sequence;
	stacks->kept[slot].head = (struct ml_interrupted_stack){ .stack_address = record->stack_address, .stack_bytes = bytes };
	memcpy(stacks->kept[slot].stack, (const ml_u8 *)record + head_of(record), bytes);
}

const struct ml_evidence *ml_interrupted_stacks_join(struct ml_interrupted_stacks *stacks, const struct ml_evidence *record)
{
	ml_u32 slot = slot_of(record->sequence);
	ml_u64 used = head_of(record) + record->stack_bytes, end = (used + 7) & ~7ull;
	struct ml_evidence *joined = (void *)stacks->joined;

	if (record->n_registers > 64 || record->stack_bytes > ML_STACK_BYTES_MAX || used > record->record_bytes)
		return NULL;
	memcpy(joined, record, used);
	memset(stacks->joined + used, 0, end - used);
	if (stacks->kept[slot].sequence == record->sequence) {
		ml_u32 bytes = (ml_u32)sizeof(stacks->kept[slot].head) + stacks->kept[slot].head.stack_bytes;

		memcpy(stacks->joined + end, &stacks->kept[slot].head, bytes);
		end += bytes;
	} else {
		joined->flags &= (ml_u16)~ML_EVIDENCE_INTERRUPTED;
	}
	joined->record_bytes = (ml_u32)end;
	return joined;
}

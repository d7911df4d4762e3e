// SPDX-License-Identifier: Apache-2.0
#include "agent/evidence/sparse_stack.h"

/* With its registers. */
static ml_u64 head_bytes(const struct ml_evidence *record)
{
	return sizeof(*record) + record->n_registers * sizeof(ml_u64);
}

static const struct ml_sparse_stack *sparse_of(const struct ml_evidence *record)
{
	return (const void *)((const char *)record + head_bytes(record));
}

bool ml_sparse_stack_is_sound(const struct ml_evidence *record, ml_u64 bytes)
{
	const struct ml_sparse_stack *sparse = sparse_of(record);
	ml_u64 head = head_bytes(record);

	if (record->n_registers > 64 || record->stack_bytes > ML_STACK_BYTES_MAX || record->stack_bytes % 8 ||
	    bytes < head + sizeof(*sparse) || sparse->n_words > ML_STACK_BYTES_MAX / 8 ||
	    bytes < head + ml_sparse_stack_bytes((ml_u32)sparse->n_words))
		return false;
	for (ml_u64 i = 0; i < sparse->n_words; i++)
		if (ml_sparse_stack_offsets(sparse)[i] >= record->stack_bytes / 8)
			return false;
	return true;
}

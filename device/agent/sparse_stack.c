// SPDX-License-Identifier: Apache-2.0
#include "sparse_stack.h"

#include <string.h>

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
	    bytes < head + sizeof(*sparse) || sparse->n_words > ML_MEMO_PLACES ||
	    bytes < head + ml_sparse_stack_bytes((ml_u32)sparse->n_words))
		return false;
	for (ml_u64 i = 0; i < sparse->n_words; i++)
		if (ml_sparse_stack_places(sparse)[i] >= record->stack_bytes / 8)
			return false;
	return true;
}

ml_u32 ml_sparse_stack_whole_bytes(const struct ml_evidence *record)
{
	return (ml_u32)head_bytes(record) + record->stack_bytes;
}

void ml_sparse_stack_make_whole(const struct ml_evidence *record, void *to)
{
	const struct ml_sparse_stack *sparse = sparse_of(record);
	const ml_u16 *places = ml_sparse_stack_places(sparse);
	ml_u64 head = head_bytes(record);
	ml_u64 *stack = (ml_u64 *)(void *)((char *)to + head);

	memcpy(to, record, head);
	memset(stack, 0, record->stack_bytes);
	for (ml_u64 i = 0; i < sparse->n_words; i++)
		stack[places[i]] = sparse->words[i];
	((struct ml_evidence *)to)->record_bytes = ml_sparse_stack_whole_bytes(record);
}

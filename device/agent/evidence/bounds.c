// SPDX-License-Identifier: Apache-2.0
#include "agent/evidence/bounds.h"

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

	if (record->n_registers > 64 || record->stack_bytes > ML_SPARSE_BYTES_MAX || record->stack_bytes % 8 ||
	    bytes < head + sizeof(*sparse) || sparse->n_words > ML_STACK_BYTES_MAX / 8 ||
	    bytes < head + ml_sparse_stack_bytes((ml_u32)sparse->n_words))
		return false;
	for (ml_u64 i = 0; i < sparse->n_words; i++)
		if (ml_sparse_stack_offsets(sparse)[i] >= record->stack_bytes / 8)
			return false;
	return true;
}

/* End of the stack, or of its words, from the record's start; 0: not within `bytes`. */
static ml_u64 stack_end(const struct ml_evidence *record, ml_u64 bytes)
{
	ml_u64 head = head_bytes(record), end = head + ((record->stack_bytes + 7ull) & ~7ull);

	if (record->flags & ML_EVIDENCE_STACK_SPARSE)
		return ml_sparse_stack_is_sound(record, bytes) ?
			       head + ml_sparse_stack_bytes((ml_u32)sparse_of(record)->n_words) :
			       0;
	return record->n_registers <= 64 && end <= bytes ? end : 0;
}

static bool is_chain_sound(const struct ml_evidence *record, ml_u64 at, ml_u64 bytes)
{
	const struct ml_frame_chain *chain = (const void *)((const char *)record + at);

	return bytes - at >= sizeof(*chain) && chain->n_frames <= ML_FRAME_CHAIN_MAX &&
	       bytes - at >= ml_frame_chain_bytes(chain->n_frames);
}

static bool is_above_sound(const struct ml_evidence *record, ml_u64 at, ml_u64 bytes)
{
	const struct ml_stack_above *above = (const void *)((const char *)record + at);

	if (record->flags & ML_EVIDENCE_STACK_SPARSE || record->stack_bytes % 8 || bytes - at < sizeof(*above) ||
	    above->n_words > ML_ABOVE_WORDS_MAX || above->reach_bytes > ML_ABOVE_BYTES_MAX || above->reach_bytes % 8 ||
	    bytes - at < ml_stack_above_bytes(above->n_words))
		return false;
	for (ml_u32 i = 0; i < above->n_words; i++)
		if (ml_stack_above_offsets(above)[i] >= above->reach_bytes / 8)
			return false;
	return true;
}

static bool is_python_sound(const struct ml_evidence *record, ml_u64 at, ml_u64 bytes)
{
	const struct ml_python_frames *python = (const void *)((const char *)record + at);

	return bytes - at >= sizeof(*python) && python->n_frames <= ML_PYTHON_FRAMES_MAX &&
	       bytes - at >= ml_python_frames_bytes(python->n_frames);
}

static bool is_interrupted_sound(const struct ml_evidence *record, ml_u64 at, ml_u64 bytes)
{
	const struct ml_interrupted_stack *stack = (const void *)((const char *)record + at);

	return !(record->flags & (ML_EVIDENCE_STACK_SPARSE | ML_EVIDENCE_STACK_ABOVE)) && bytes - at >= sizeof(*stack) &&
	       stack->stack_bytes <= ML_STACK_BYTES_MAX && stack->stack_bytes % 8 == 0 &&
	       bytes - at - sizeof(*stack) >= stack->stack_bytes;
}

bool ml_evidence_is_sound(const struct ml_evidence *record, ml_u64 bytes)
{
	ml_u64 end = stack_end(record, bytes);

	if (!end || record->record_bytes > bytes || record->n_fixups > ML_FIXUPS)
		return false;
	if (record->flags & ML_EVIDENCE_FRAME_CHAIN) {
		if (!is_chain_sound(record, end, bytes))
			return false;
		end += ml_frame_chain_bytes(
			((const struct ml_frame_chain *)(const void *)((const char *)record + end))->n_frames);
	}
	if (record->flags & ML_EVIDENCE_STACK_ABOVE) {
		if (!is_above_sound(record, end, bytes))
			return false;
		end += ml_stack_above_bytes(
			((const struct ml_stack_above *)(const void *)((const char *)record + end))->n_words);
	}
	if (record->flags & ML_EVIDENCE_INTERRUPTED) {
		if (!is_interrupted_sound(record, end, bytes))
			return false;
		end += sizeof(struct ml_interrupted_stack) +
		       ((const struct ml_interrupted_stack *)(const void *)((const char *)record + end))->stack_bytes;
	}
	return !(record->flags & ML_EVIDENCE_PYTHON_FRAMES) || is_python_sound(record, end, bytes);
}

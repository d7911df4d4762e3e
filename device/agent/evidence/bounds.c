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

/* Bytes of what follows the stack, which begins at `at`; 0: not within `bytes`. */
static ml_u64 chain_bytes(const struct ml_evidence *record, ml_u64 at, ml_u64 bytes)
{
	const struct ml_frame_chain *chain = (const void *)((const char *)record + at);

	if (bytes - at < sizeof(*chain) || chain->n_frames > ML_FRAME_CHAIN_MAX ||
	    bytes - at < ml_frame_chain_bytes(chain->n_frames))
		return 0;
	return ml_frame_chain_bytes(chain->n_frames);
}

static ml_u64 above_bytes(const struct ml_evidence *record, ml_u64 at, ml_u64 bytes)
{
	const struct ml_stack_above *above = (const void *)((const char *)record + at);

	if (record->flags & ML_EVIDENCE_STACK_SPARSE || record->stack_bytes % 8 || bytes - at < sizeof(*above) ||
	    above->n_words > ML_ABOVE_WORDS_MAX || above->reach_bytes > ML_ABOVE_BYTES_MAX || above->reach_bytes % 8 ||
	    bytes - at < ml_stack_above_bytes(above->n_words))
		return 0;
	for (ml_u32 i = 0; i < above->n_words; i++)
		if (ml_stack_above_offsets(above)[i] >= above->reach_bytes / 8)
			return 0;
	return ml_stack_above_bytes(above->n_words);
}

static ml_u64 python_bytes(const struct ml_evidence *record, ml_u64 at, ml_u64 bytes)
{
	const struct ml_python_frames *python = (const void *)((const char *)record + at);

	if (bytes - at < sizeof(*python) || python->n_frames > ML_PYTHON_FRAMES_MAX ||
	    bytes - at < ml_python_frames_bytes(python->n_frames))
		return 0;
	return ml_python_frames_bytes(python->n_frames);
}

static ml_u64 interrupted_bytes(const struct ml_evidence *record, ml_u64 at, ml_u64 bytes)
{
	const struct ml_interrupted_stack *stack = (const void *)((const char *)record + at);

	if (record->flags & (ML_EVIDENCE_STACK_SPARSE | ML_EVIDENCE_STACK_ABOVE) || bytes - at < sizeof(*stack) ||
	    stack->stack_bytes > ML_STACK_BYTES_MAX || stack->stack_bytes % 8 ||
	    bytes - at - sizeof(*stack) < stack->stack_bytes)
		return 0;
	return sizeof(*stack) + stack->stack_bytes;
}

bool ml_evidence_is_sound(const struct ml_evidence *record, ml_u64 bytes)
{
	static const struct {
		ml_u16 flag;
		ml_u64 (*bytes)(const struct ml_evidence *record, ml_u64 at, ml_u64 bytes);
	} parts[] = { { ML_EVIDENCE_FRAME_CHAIN, chain_bytes },
		      { ML_EVIDENCE_STACK_ABOVE, above_bytes },
		      { ML_EVIDENCE_INTERRUPTED, interrupted_bytes },
		      { ML_EVIDENCE_PYTHON_FRAMES, python_bytes } };
	ml_u64 end = stack_end(record, bytes);

	if (!end || record->record_bytes > bytes || record->n_fixups > ML_FIXUPS)
		return false;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		ml_u64 part = record->flags & parts[i].flag ? parts[i].bytes(record, end, bytes) : 0;

		if (record->flags & parts[i].flag && !part)
			return false;
		end += part;
	}
	return true;
}

// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/evidence.h"

#include <string.h>

#include "agent/evidence/bounds.h"

/* Of a packed record: head, at most 64 registers, ML_BPF_WORDS_MAX words with their offsets. */
#define PACKED_BYTES (sizeof(struct ml_evidence) + 64 * 8 + 8 + ML_BPF_WORDS_MAX * (8 + 2))

/* Writes the form of struct ml_sparse_stack to `to`; NULL if the record is inconsistent. */
static const struct ml_evidence *pack(const struct ml_evidence *record, ml_u64 bytes, ml_u8 to[PACKED_BYTES])
{
	ml_u64 head = sizeof(*record) + record->n_registers * sizeof(ml_u64);
	const ml_u64 *from = (const void *)((const ml_u8 *)record + head);
	ml_u64 room = bytes > head + sizeof(*from) ? (bytes - head - sizeof(*from)) / (sizeof(ml_u64) + sizeof(ml_u16)) : 0;
	struct ml_sparse_stack *sparse = (void *)(to + head);
	ml_u16 *offsets;

	if (record->n_registers > 64 || !room || room > ML_BPF_WORDS_MAX || *from > room)
		return NULL;
	memcpy(to, record, head);
	sparse->n_words = *from;
	memcpy(sparse->words, from + 1, sparse->n_words * sizeof(ml_u64));
	offsets = ml_sparse_stack_offsets(sparse);
	memset(offsets, 0, (sparse->n_words * sizeof(*offsets) + 7) & ~7ull);
	for (ml_u64 i = 0; i < sparse->n_words; i++)
		offsets[i] = ((const ml_u16 *)(from + 1 + room))[i] & (ml_u16)~ML_BPF_OFFSET_OF_ADDRESS;
	record = (const void *)to;
	((struct ml_evidence *)(void *)to)->record_bytes = (ml_u32)head + ml_sparse_stack_bytes((ml_u32)sparse->n_words);
	return ml_sparse_stack_is_sound(record, record->record_bytes) ? record : NULL;
}

int ml_bpf_evidence_keep(struct ml_nursery *nursery, const struct ml_evidence *record, ml_u64 bytes)
{
	_Alignas(8) ml_u8 packed[PACKED_BYTES];

	if (record->flags & ML_EVIDENCE_STACK_SPARSE)
		record = pack(record, bytes, packed);
	return record ? ml_nursery_add(nursery, record) : -1;
}

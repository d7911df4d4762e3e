// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/record_stacks.h"

#include <stdlib.h>
#include <string.h>

#include "agent/process/signature_mask.h"

/* Head, at most 64 registers. */
#define HEAD_BYTES (sizeof(struct ml_evidence) + 64 * 8)

int ml_long_stacks_create(struct ml_long_stacks *stacks)
{
	stacks->joined = malloc(HEAD_BYTES + ML_ABOVE_BYTES_MAX);
	stacks->packed = malloc(HEAD_BYTES + ML_STACK_BYTES_MAX + ml_stack_above_bytes(ML_ABOVE_WORDS_MAX));
	stacks->signature_mask = ml_signature_mask();
	if (stacks->joined && stacks->packed)
		return 0;
	ml_long_stacks_destroy(stacks);
	return -1;
}

void ml_long_stacks_destroy(struct ml_long_stacks *stacks)
{
	free(stacks->joined);
	free(stacks->packed);
	stacks->joined = stacks->packed = NULL;
}

static ml_u64 head_of(const struct ml_evidence *record)
{
	return sizeof(*record) + record->n_registers * sizeof(ml_u64);
}

static ml_u64 page_of(const struct ml_evidence *record, ml_u64 address)
{
	return address / ML_BPF_PAGE_BYTES - record->stack_address / ML_BPF_PAGE_BYTES;
}

/* The pages from that of stack_address on, 0: beyond the record. */
static ml_u64 count_pages(const struct ml_evidence *record, ml_u64 bytes)
{
	ml_u64 n = page_of(record, record->stack_address + record->stack_bytes + ML_BPF_PAGE_BYTES - 1);

	return record->n_registers <= 64 && record->stack_bytes <= ML_ABOVE_BYTES_MAX && record->stack_address % 8 == 0 &&
			       record->stack_bytes % 8 == 0 && n <= ML_BPF_PAGES_MAX &&
			       head_of(record) + sizeof(struct ml_bpf_pages) + n * ML_BPF_PAGE_BYTES <= bytes ?
		       n :
		       0;
}

const struct ml_evidence *ml_long_stacks_join(struct ml_long_stacks *stacks, const struct ml_evidence *record, ml_u64 *bytes)
{
	ml_u64 n = count_pages(record, *bytes), head = head_of(record), skipped = record->stack_address % ML_BPF_PAGE_BYTES;
	const struct ml_bpf_pages *pages = (const void *)((const ml_u8 *)record + head);
	struct ml_evidence *joined = (void *)stacks->joined;

	if (!n)
		return NULL;
	memcpy(joined, record, head);
	if (!memchr(pages->is_present, 1, n)) {
		joined->stack_bytes = 0;
		joined->flags |= ML_EVIDENCE_STACK_FAULT;
	}
	memcpy(stacks->joined + head, (const ml_u8 *)(pages + 1) + skipped, joined->stack_bytes);
	memcpy(stacks->is_present, pages->is_present, n);
	for (ml_u64 i = 0; i < n && joined->stack_bytes; i++) {
		ml_u64 begin = i ? i * ML_BPF_PAGE_BYTES - skipped : 0, end = (i + 1) * ML_BPF_PAGE_BYTES - skipped;

		if (!pages->is_present[i])
			memset(stacks->joined + head + begin, 0,
			       (end < joined->stack_bytes ? end : joined->stack_bytes) - begin);
	}
	*bytes = head + joined->stack_bytes;
	joined->record_bytes = (ml_u32)*bytes;
	return joined;
}

/* Bytes of the stack up to the first page that is not present, at most those of a slice. */
static ml_u32 slice_of(const struct ml_long_stacks *stacks, const struct ml_evidence *joined)
{
	ml_u64 bytes = 0;

	while (bytes < joined->stack_bytes && bytes < ML_STACK_BYTES_MAX &&
	       stacks->is_present[page_of(joined, joined->stack_address + bytes)])
		bytes += ML_BPF_PAGE_BYTES - (joined->stack_address + bytes) % ML_BPF_PAGE_BYTES;
	if (bytes > joined->stack_bytes)
		bytes = joined->stack_bytes;
	return (ml_u32)(bytes < ML_STACK_BYTES_MAX ? bytes : ML_STACK_BYTES_MAX);
}

/* Gathers the words above the slice that may lead to the next frame: pointers to code or into the stack. */
static void gather(const struct ml_long_stacks *stacks, const struct ml_bpf_code *code, const struct ml_evidence *joined,
		   ml_u64 slice_bytes, struct ml_stack_above *into, ml_u32 *offsets)
{
	const ml_u64 *words = (const void *)((const ml_u8 *)joined + head_of(joined));
	ml_u64 i;

	for (i = slice_bytes / 8; i < joined->stack_bytes / 8 && into->n_words < ML_ABOVE_WORDS_MAX; i++) {
		if (!stacks->is_present[page_of(joined, joined->stack_address + 8 * i)] ||
		    (words[i] - joined->stack_address >= joined->stack_bytes &&
		     !ml_bpf_may_be_code(code, ml_strip_signature(words[i], stacks->signature_mask))))
			continue;
		offsets[into->n_words] = (ml_u32)(i - slice_bytes / 8);
		into->words[into->n_words++] = words[i];
	}
	into->reach_bytes = (ml_u32)(8 * i - slice_bytes);
}

const struct ml_evidence *ml_long_stacks_pack(struct ml_long_stacks *stacks, const struct ml_bpf_code *code,
					      const struct ml_evidence *joined)
{
	ml_u32 slice_bytes = slice_of(stacks, joined), head = (ml_u32)head_of(joined) + slice_bytes;
	struct ml_evidence *packed = (void *)stacks->packed;
	struct ml_stack_above *above = (void *)(stacks->packed + head);
	ml_u32 *offsets = (void *)&above->words[ML_ABOVE_WORDS_MAX]; /* moved when n_words is known */

	memcpy(packed, joined, head);
	packed->flags &= (ml_u16)~ML_BPF_EVIDENCE_PAGED;
	packed->record_bytes = head;
	if (slice_bytes == joined->stack_bytes)
		return packed;
	*above = (struct ml_stack_above){ .n_words = 0 };
	gather(stacks, code, joined, slice_bytes, above, offsets);
	memmove(ml_stack_above_offsets(above), offsets, above->n_words * sizeof(*offsets));
	if (above->n_words % 2)
		ml_stack_above_offsets(above)[above->n_words] = 0;
	packed->stack_bytes = slice_bytes;
	packed->flags = (packed->flags & (ml_u16)~ML_EVIDENCE_INTERRUPTED) | ML_EVIDENCE_STACK_ABOVE;
	packed->record_bytes = head + ml_stack_above_bytes(above->n_words);
	return packed;
}

/* ---- interrupted stacks ------------------------------------------------------------------------------- */

static ml_u32 slot_of(ml_u64 sequence)
{
	return (sequence ^ sequence >> ML_BPF_SEQUENCE_SHIFT) % ML_INTERRUPTED_KEPT;
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

// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/peak.h"

#include <stdlib.h>

#include "agent/evidence/table_blocks.h"

static ml_u64 read_word(const ml_u64 *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

/* The bytes that the key held at the mark of this generation. An update between the reads leaves a word of this generation. */
static ml_u64 held_at(const struct ml_bpf *bpf, ml_u32 slot, ml_u64 generation)
{
	const struct ml_bpf_key *key = &bpf->keys[slot];
	ml_u64 freed = read_word(&key->free_bytes), now = read_word(&key->alloc_bytes) - freed;
	ml_u64 word = read_word(&bpf->peak_words[slot]);

	return word >> ML_BPF_PEAK_BYTES_BITS == generation ? word & ML_BPF_PEAK_BYTES_MASK : now;
}

static int write_keys(const struct ml_bpf *bpf, struct ml_peak_rows *rows, ml_u64 generation)
{
	for (ml_u32 slot = 0; slot < ML_BPF_KEY_SLOTS; slot++)
		if (bpf->keys[slot].key && bpf->keys[slot].process == bpf->code->process &&
		    ml_peak_rows_add(rows, bpf->keys[slot].key, held_at(bpf, slot, generation)))
			return -1;
	return ml_peak_rows_end(rows);
}

int ml_bpf_peak_write(struct ml_bpf *bpf)
{
	ml_u64 generation = bpf->peak ? read_word(&bpf->peak->generation) : 0, mark;
	struct ml_peak_rows *rows;
	int result;

	/* A mark that stopped rising because its generations ran out is not the peak. */
	if (generation == bpf->peak_sent || generation >= ML_BPF_PEAK_GENERATION_MAX)
		return 0;
	mark = read_word(&bpf->peak->mark);
	rows = mark ? calloc(1, sizeof(*rows)) : NULL;
	if (!rows)
		return 0; /* the host keeps the earlier mark, if any */
	rows->head = (struct ml_high_water){
		.timestamp_ns = read_word(&bpf->peak->timestamp_ns),
		.mark = mark,
		.bound_bytes = mark >> ML_BPF_PEAK_STEP_SHIFT,
		.pid = (ml_u32)bpf->code->process,
	};
	result = write_keys(bpf, rows, generation);
	free(rows);
	bpf->peak_sent = generation;
	return result;
}

bool ml_bpf_was_in_peak(void *context, ml_u64 key)
{
	const struct ml_bpf *bpf = context;
	const struct ml_bpf_key *entry = bpf->peak ? ml_bpf_find_key(bpf, key) : NULL;

	return entry && held_at(bpf, (ml_u32)(entry - bpf->keys), read_word(&bpf->peak->generation)) >
				read_word(&bpf->peak->mark) >> ML_PEAK_PART_SHIFT;
}

// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/images.h"

#include <bpf/bpf.h>

/*
 * While there are rules to learn, a stack that runs into an unknown place is worth a wake-up: until it is learned, words
 * that are no return addresses make many keys of one stack. So many records that taught nothing end that.
 */
#define ML_UNTAUGHT_MAX 256

int ml_bpf_add_process(struct ml_bpf *bpf, ml_u32 tgid)
{
	struct ml_bpf_process process = { .image = ML_BPF_FIRST_IMAGE };

	if (!bpf->code->process)
		bpf->code->process = tgid;
	return bpf_map_update_elem(bpf->processes_fd, &tgid, &process, BPF_NOEXIST);
}

ml_u32 ml_bpf_epoch(const struct ml_bpf *bpf, ml_u32 tgid)
{
	struct ml_bpf_process process = { 0 };

	bpf_map_lookup_elem(bpf->processes_fd, &tgid, &process);
	return process.epoch;
}

ml_u64 ml_bpf_image(const struct ml_bpf *bpf, ml_u32 tgid)
{
	struct ml_bpf_process process;

	if (bpf_map_lookup_elem(bpf->processes_fd, &tgid, &process))
		return 0;
	return process.image + (bpf->code->generation << ML_BPF_GENERATION_SHIFT);
}

static void mark_granule(struct ml_bpf *bpf, ml_u64 granule)
{
	ml_u64 address = granule << ML_BPF_GRANULE_SHIFT;
	ml_u32 bit = ml_bpf_granule(address);

	bpf->code->high_bytes[address >> 32 & 0xff] = 1;
	bpf->code->granules[bit >> 3] |= (ml_u8)(1u << (bit & 7));
}

/* Code at start … end - 1, of which this looks at one granule. */
static void add_span(struct ml_bpf *bpf, ml_u64 granule, ml_u64 start, ml_u64 end)
{
	ml_u64 base = granule << ML_BPF_GRANULE_SHIFT, bytes = 1u << ML_BPF_GRANULE_SHIFT;
	struct ml_bpf_span known, span = {
		.low = start > base ? (ml_u32)(start - base) : 0,
		.high = (ml_u32)(end < base + bytes ? end - base : bytes),
	};

	if (!bpf_map_lookup_elem(bpf->spans_fd, &granule, &known)) {
		if (known.low <= span.low && known.high >= span.high)
			return;
		if (known.low < span.low)
			span.low = known.low;
		if (known.high > span.high)
			span.high = known.high;
	}
	bpf_map_update_elem(bpf->spans_fd, &granule, &span, BPF_ANY);
}

void ml_bpf_add_code(struct ml_bpf *bpf, ml_u64 start, ml_u64 end)
{
	for (ml_u64 granule = start >> ML_BPF_GRANULE_SHIFT; granule << ML_BPF_GRANULE_SHIFT < end; granule++) {
		mark_granule(bpf, granule);
		add_span(bpf, granule, start, end);
	}
}

void ml_bpf_code_mapped(struct ml_bpf *bpf, ml_u64 start, ml_u64 end)
{
	ml_bpf_add_code(bpf, start, end);
	bpf->n_untaught = 0;
	bpf->code->wants_wakeup = 1;
	if (bpf->sees_mappings)
		return;
	__atomic_fetch_add(&bpf->code->generation, 1, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&bpf->code->images_changed, 1, __ATOMIC_SEQ_CST);
}

static ml_u64 image_now(void *context, ml_u32 pid)
{
	return ml_bpf_image(context, pid);
}

void ml_bpf_learn(struct ml_bpf *bpf, struct ml_frames *frames, const struct ml_evidence *record)
{
	struct ml_frames_space space = {
		.pid = record->pid,
		.image = ml_bpf_image(bpf, record->pid),
		.rules = bpf->rules,
		.image_now = image_now,
		.context = bpf,
	};

	if (!space.rules || !space.image)
		return;
	bpf->n_untaught = ml_frames_learn(frames, &space, record) ? 0 : bpf->n_untaught + 1;
	bpf->code->wants_wakeup = bpf->n_untaught < ML_UNTAUGHT_MAX;
}

// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/images.h"

#include <bpf/bpf.h>
#include <stdlib.h>

#include "agent/protocol/blocks.h"
#include "agent/protocol/extend.h"

/* A check costs a system call for each process, dropping a scan of all rules. */
#define RECYCLE_NS (100ull * 1000 * 1000)
#define NOTHING_DROPPED_NS (5ull * 1000 * 1000 * 1000)

/*
 * While rules are missing, a stack that runs into an unknown return address wakes the agent: until the rule exists, words that
 * only look like return addresses split one stack into many keys. After this many records without a new rule, wake-ups stop.
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

/* 0: unknown. */
static ml_u64 image_of(const struct ml_bpf *bpf, ml_u32 tgid)
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

/* Adds the part of start … end - 1 that lies in one granule. */
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
	return image_of(context, pid);
}

void ml_bpf_learn(struct ml_bpf *bpf, struct ml_frames *frames, const struct ml_evidence *record)
{
	struct ml_frames_space space = {
		.pid = record->pid,
		.image = image_of(bpf, record->pid),
		.rules = bpf->rules,
		.image_now = image_now,
		.context = bpf,
	};

	if (!space.rules || !space.image)
		return;
	bpf->n_untaught = ml_frames_learn(frames, &space, record) ? 0 : bpf->n_untaught + 1;
	bpf->code->wants_wakeup = bpf->n_untaught < ML_UNTAUGHT_MAX;
}

void ml_bpf_recycle_rules(struct ml_bpf *bpf, struct ml_frames *frames, const struct ml_process_set *processes)
{
	ml_u64 now = ml_frames_is_full(frames) ? ml_clock_ns() : 0;
	ml_u64 *images;
	ml_u32 n_dropped;

	if (now <= bpf->recycle_ns)
		return;
	images = calloc(processes->count + 1, sizeof(*images));
	if (!images)
		return;
	for (size_t i = 0; i < processes->count; i++)
		images[i] = image_of(bpf, processes->processes[i].pid);
	qsort(images, processes->count, sizeof(*images), ml_compare_u64);
	n_dropped = ml_frames_recycle(frames, bpf->rules, images, processes->count);
	free(images);
	bpf->recycle_ns = now + (n_dropped ? RECYCLE_NS : NOTHING_DROPPED_NS);
	if (n_dropped)
		bpf->n_untaught = 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/rules.h"

#include <stdlib.h>

#include "agent/protocol/blocks.h"
#include "agent/bpf/images.h"

/* Looking costs a system call for each process, dropping a look at each rule. */
#define RECYCLE_NS (100ull * 1000 * 1000)
#define NOTHING_DROPPED_NS (5ull * 1000 * 1000 * 1000)

static int compare(const void *left, const void *right)
{
	ml_u64 a = *(const ml_u64 *)left, b = *(const ml_u64 *)right;

	return (a > b) - (a < b);
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
		images[i] = ml_bpf_image(bpf, ml_process_set_pid(processes, i));
	qsort(images, processes->count, sizeof(*images), compare);
	n_dropped = ml_frames_recycle(frames, bpf->rules, images, processes->count);
	free(images);
	bpf->recycle_ns = now + (n_dropped ? RECYCLE_NS : NOTHING_DROPPED_NS);
	if (n_dropped)
		bpf->n_untaught = 0;
}

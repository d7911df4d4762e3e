/* SPDX-License-Identifier: Apache-2.0 */
/* Frame rules for the tracers (frame_rule.h), learned from the evidence that they send. */
#ifndef MEMLEAK_FRAMES_H
#define MEMLEAK_FRAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "frame_rule.h"

struct ml_frames;

/* NULL: out of memory. What it takes is bounded, whatever the targets are. */
struct ml_frames *ml_frames_create(void);
void ml_frames_destroy(struct ml_frames *frames);

/* That of the records, NULL where there are no rules. */
const struct ml_cfi_arch *ml_frames_arch(const struct ml_frames *frames);

struct ml_frames_space { /* whose rules, for one call */
	ml_u32 pid;
	ml_u64 image;                /* see ml_frame_hash() */
	struct ml_frame_rule *rules; /* ML_FRAME_RULES of them, shared with the tracer */
	/* The image now: asked before what was read is published. Another than `image`: nothing is. */
	ml_u64 (*image_now)(void *context, ml_u32 pid);
	void *context;
};

/*
 * Walks the record's stack, and looks into the process's CFI for the return addresses that have no rule yet. Returns how
 * many rules were added. Every length in the record is checked. It costs no system call when all are known.
 */
int ml_frames_learn(struct ml_frames *frames, const struct ml_frames_space *space, const struct ml_evidence *record);

/* Has there been no room in the table for something that was learned, since rules were dropped? */
bool ml_frames_is_full(const struct ml_frames *frames);

/* Drops all rules but those of these images, in rising order. Returns how many were dropped. */
ml_u32 ml_frames_recycle(struct ml_frames *frames, struct ml_frame_rule *rules, const ml_u64 *images, size_t n_images);

/* Its mappings changed, or it ended: what was read of it is dropped. */
void ml_frames_forget(struct ml_frames *frames, ml_u32 pid);

#endif

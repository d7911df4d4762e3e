/* SPDX-License-Identifier: Apache-2.0 */
/* Learns frame rules for the tracers (frame_rule.h) from the evidence that they send. */
#pragma once

#include "frame_rule.h"

struct ml_frames;

/* NULL: out of memory. Its memory is bounded, whatever the targets do. */
struct ml_frames *ml_frames_create(void);
void ml_frames_destroy(struct ml_frames *frames);

/* Architecture of the records; NULL: one without rules. */
const struct ml_cfi_arch *ml_frames_arch(const struct ml_frames *frames);

struct ml_frames_space { /* the target of one call */
	ml_u32 pid;
	ml_u64 image;                /* see ml_frame_hash() */
	struct ml_frame_rule *rules; /* ML_FRAME_RULES of them, shared with the tracer */
	/* Called before publishing: the current image. If it is not `image` any more, nothing is published. */
	ml_u64 (*image_now)(void *context, ml_u32 pid);
	void *context;
};

/*
 * Walks the record's stack and reads the process's CFI for return addresses without a rule. Checks every length in the record.
 * Returns the number of added rules. Makes no system call if all rules are known.
 */
int ml_frames_learn(struct ml_frames *frames, const struct ml_frames_space *space, const struct ml_evidence *record);

/* Whether a learned rule found no room in the table since rules were last dropped. */
bool ml_frames_is_full(const struct ml_frames *frames);

/* Keeps the rules of these images, in rising order. Returns the number of dropped rules. */
ml_u32 ml_frames_recycle(struct ml_frames *frames, struct ml_frame_rule *rules, const ml_u64 *images, size_t n_images);

/* The process changed its mappings, or ended: drops what was read from it. */
void ml_frames_forget(struct ml_frames *frames, ml_u32 pid);

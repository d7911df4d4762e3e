/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent learns from a target's evidence about its frames, for the shim's keys (frame_rule.h). */
#ifndef MEMLEAK_PRELOAD_FRAMES_H
#define MEMLEAK_PRELOAD_FRAMES_H

#include "frames.h"
#include "preload_target.h"

void ml_preload_frames_learn(struct ml_frames *frames, struct ml_preload_target *target,
			     const struct ml_evidence *record);

#endif

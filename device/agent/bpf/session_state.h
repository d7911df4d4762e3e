/* SPDX-License-Identifier: Apache-2.0 */
/* The state of one BPF session. */
#pragma once

#include "agent/bpf/object.h"
#include "agent/protocol/blocks.h"
#include "agent/probes/frames.h"
#include "agent/bpf/late_stack.h"
#include "agent/process/process_set.h"
#include "agent/evidence/regions.h"
#include "agent/process/sideband.h"
#include "agent/session/loop.h"
#include "agent/bpf/trampolines.h"

#define ML_STACK_ENDS_SLOTS 1024

/* Ends of stacks that the BPF programs cannot see. */
struct ml_stack_ends {
	int fd;                            /* of the map tid → end */
	ml_u32 known[ML_STACK_ENDS_SLOTS]; /* tids, by tid % ML_STACK_ENDS_SLOTS */
};

struct ml_bpf_session {
	struct ml_session base;
	struct ml_config settled; /* the configuration with the offsets of its probes */
	struct ml_bpf bpf;
	struct ml_sideband *sideband;
	struct ml_frames *frames;
	struct ml_process_set processes; /* traced, not yet exited */
	int idle_rounds;
	ml_u64 next_ended_ns, evidence_records, self_tests, n_children;
	ml_u64 before_armed[ML_LOST_MAX]; /* counted while the probes were placed one by one */
	struct ml_regions regions;
	struct ml_stack_ends stack_ends;
	struct ml_trampolines trampolines;
	struct ml_late_stacks late_stacks;
	struct ml_event_batch events;
};

/* SPDX-License-Identifier: Apache-2.0 */
/* All that one BPF session knows. */
#ifndef MEMLEAK_BPF_SESSION_STATE_H
#define MEMLEAK_BPF_SESSION_STATE_H

#include "agent/bpf/object.h"
#include "agent/protocol/config.h"
#include "agent/protocol/event_batch.h"
#include "agent/probes/frames.h"
#include "agent/bpf/hot_keys.h"
#include "agent/bpf/late_stack.h"
#include "agent/evidence/nursery.h"
#include "agent/process/process_set.h"
#include "agent/evidence/regions.h"
#include "agent/process/sideband.h"
#include "agent/spawn/spawn.h"
#include "agent/bpf/stack_ends.h"
#include "agent/bpf/trampolines.h"

struct ml_bpf_session {
	struct ml_config settled; /* as asked for, with the places of its probes */
	const struct ml_config *config;
	struct ml_bpf bpf;
	struct ml_nursery *nursery;
	struct ml_sideband *sideband;
	struct ml_frames *frames;
	struct ml_process_set processes; /* that are traced and have not exited */
	struct ml_child child;
	bool is_host_gone, is_child; /* of ours, not attached to */
	int pid, pidfd;
	int wait_status;
	int idle_rounds;
	ml_u64 snapshots, next_status_ns, next_look_ns, evidence_records, self_tests, n_children;
	ml_u64 before_armed[ML_LOST_MAX]; /* counted while the probes were being placed one by one */
	ml_u64 lost[ML_LOST_MAX]; /* by the agent, beside what the programs count */
	struct ml_regions regions;
	struct ml_stack_ends stack_ends;
	struct ml_trampolines trampolines;
	struct ml_late_stacks late_stacks;
	struct ml_event_batch events;
	struct ml_hot_keys hot_keys;
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The table of frame rules that the BPF programs walk by: its room is given back when images are gone. */
#ifndef MEMLEAK_BPF_RULES_H
#define MEMLEAK_BPF_RULES_H

#include "agent/bpf/object.h"
#include "agent/probes/frames.h"
#include "agent/process/process_set.h"

/* When the table is full, and not often: drops the rules of what none of these processes runs any more. */
void ml_bpf_recycle_rules(struct ml_bpf *bpf, struct ml_frames *frames, const struct ml_process_set *processes);

#endif

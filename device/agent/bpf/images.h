/* SPDX-License-Identifier: Apache-2.0 */
/* Processes, their images and their code in the maps of the BPF programs (bpf/session.h), and frame rules by image. */
#pragma once

#include "agent/bpf/object.h"
#include "agent/probes/frames.h"
#include "agent/process/process_set.h"

/* Traces a process. Without --follow the first one is the only one. */
int ml_bpf_add_process(struct ml_bpf *bpf, ml_u32 tgid);

/* Its exec epoch; 0: unknown. */
ml_u32 ml_bpf_epoch(const struct ml_bpf *bpf, ml_u32 tgid);

/* Marks addresses as code, for the stack keys. */
void ml_bpf_add_code(struct ml_bpf *bpf, ml_u64 start, ml_u64 end);

/* A process has mapped code. If the programs cannot see mmap, all images count as changed: other code may have been there. */
void ml_bpf_code_mapped(struct ml_bpf *bpf, ml_u64 start, ml_u64 end);

/* Learns frame rules for the programs from one record of evidence. */
void ml_bpf_learn(struct ml_bpf *bpf, struct ml_frames *frames, const struct ml_evidence *record);

/* If the table of rules is full: drops the rules of images that none of these processes runs, at bounded intervals. */
void ml_bpf_recycle_rules(struct ml_bpf *bpf, struct ml_frames *frames, const struct ml_process_set *processes);

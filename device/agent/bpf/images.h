/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent tells the BPF programs about processes and their code, and asks them (../bpf/session.h). */
#ifndef MEMLEAK_BPF_IMAGES_H
#define MEMLEAK_BPF_IMAGES_H

#include "agent/bpf/object.h"
#include "agent/probes/frames.h"

/* Makes a process one that is traced; the first is the one where no others are followed. */
int ml_bpf_add_process(struct ml_bpf *bpf, ml_u32 tgid);

/* Its exec epoch; 0 when it is not known. */
ml_u32 ml_bpf_epoch(const struct ml_bpf *bpf, ml_u32 tgid);

/* The number of its image; 0 when it is not known. */
ml_u64 ml_bpf_image(const struct ml_bpf *bpf, ml_u32 tgid);

/* Tells of code for the stack keys. */
void ml_bpf_add_code(struct ml_bpf *bpf, ml_u64 start, ml_u64 end);

/* Tells that a process has mapped code: where the programs do not see that, it may stand where other code did. */
void ml_bpf_code_mapped(struct ml_bpf *bpf, ml_u64 start, ml_u64 end);

/* Learns rules for the programs' walk from what one record of evidence shows. */
void ml_bpf_learn(struct ml_bpf *bpf, struct ml_frames *frames, const struct ml_evidence *record);

#endif

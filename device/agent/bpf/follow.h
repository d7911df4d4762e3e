/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of a BPF session map, fork and become. */
#ifndef MEMLEAK_BPF_FOLLOW_H
#define MEMLEAK_BPF_FOLLOW_H

#include "agent/bpf/session_state.h"

/* Opens the side band of all mappings and processes; NULL with errno set. */
struct ml_sideband *ml_bpf_follow_begin(struct ml_bpf_session *session);

/* The whole map of a process, with what the side band does not tell: the vdso, stacks, older mappings. */
void ml_bpf_follow_write_maps(struct ml_bpf_session *session, ml_u32 pid);

/*
 * Where every process is traced: tells of one at the first stack that it sends. Many send none, or end soon and take
 * /proc/PID/maps with them. false: out of memory.
 */
bool ml_bpf_follow_meet(struct ml_bpf_session *session, ml_u32 pid);

/* Of all the rest, so that each that holds something has a name. */
void ml_bpf_follow_meet_all(struct ml_bpf_session *session);

/* Says where the target went on without its first thread. */
void ml_bpf_follow_first_thread(struct ml_bpf_session *session);

#endif

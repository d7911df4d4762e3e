/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings, forks and execs of the processes of a BPF session. */
#pragma once

#include "agent/bpf/session_state.h"

/* Opens the perf side band of all processes; NULL with errno set. */
struct ml_sideband *ml_bpf_follow_begin(struct ml_bpf_session *session);

/* Writes all maps of a process, with those that the side band lacks: the vdso, stacks, older mappings. */
void ml_bpf_follow_write_maps(struct ml_bpf_session *session, ml_u32 pid);

/*
 * With --all: reports a process at the first stack that it sends. Many send none, or end soon and take /proc/PID/maps with
 * them. false: out of memory.
 */
bool ml_bpf_follow_report(struct ml_bpf_session *session, ml_u32 pid);

/* Reports all others, so that each process that holds memory has a name. */
void ml_bpf_follow_report_all(struct ml_bpf_session *session);

/* Logs if the target continues without its first thread and its calls are no longer seen. */
void ml_bpf_follow_first_thread(struct ml_bpf_session *session);

/* Passes on the mapping of this record's stack, once per thread, unless the record reaches its end. */
void ml_stacks_add(struct ml_stacks *stacks, const struct ml_evidence *record);

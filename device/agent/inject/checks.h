/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a process before any thread is stopped: whether a library can be loaded into it, and if not why. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define ML_REFUSAL_BYTES 512

/* One line: what prevents it, with the datum (way out). */
struct ml_refusal {
	char text[ML_REFUSAL_BYTES];
};

/* Returns -1. */
int ml_refuse(struct ml_refusal *refusal, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* 0, or -1 and the refusal: ended, a kernel thread, 32-bit, static, traced, stopped, frozen, seccomp, memory shared with its parent. */
int ml_inject_check(pid_t pid, struct ml_refusal *refusal);

/* 0, or -1 and the refusal: the limit of open files leaves the process too few for what attaching opens there. */
int ml_inject_check_descriptors(pid_t pid, struct ml_refusal *refusal);

/* Whether another process traces it, for a moment perhaps: a BPF session that spares it does (probes/spared.h). */
bool ml_inject_is_traced(pid_t pid);

/* The reason why ml_ptrace_stop_all() has failed, by its errno. */
int ml_inject_refuse_stop(pid_t pid, int error, struct ml_refusal *refusal);

/* A child that shares its memory, as after vfork() before exec; 0: none, or unknown (no CONFIG_PROC_CHILDREN). */
pid_t ml_inject_child_in_memory(pid_t pid);

/* Whether the process sees the same files as the agent. */
bool ml_inject_shares_files(pid_t pid);

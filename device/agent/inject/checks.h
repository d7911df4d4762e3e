/* SPDX-License-Identifier: Apache-2.0 */
/* What can be said of a process before it is touched: whether a library could be brought into it, and why not. */
#ifndef MEMLEAK_INJECT_CHECKS_H
#define MEMLEAK_INJECT_CHECKS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define ML_REFUSAL_BYTES 512

/* One line: what stands in the way, with the datum (way out). */
struct ml_refusal {
	char text[ML_REFUSAL_BYTES];
};

/* Always -1. */
int ml_refuse(struct ml_refusal *refusal, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* 0, or -1 and the refusal: ended, a kernel thread, 32-bit, static, traced, stopped, seccomp, memory shared with its parent. */
int ml_inject_check(pid_t pid, struct ml_refusal *refusal);

/* Why ptrace(2) said no (EPERM): of what the machine and the process let us see. */
int ml_inject_refuse_ptrace(pid_t pid, struct ml_refusal *refusal);

/* A child that runs in its memory, as of vfork() before the exec; 0 = it has none, or the kernel does not tell (CONFIG_PROC_CHILDREN). */
pid_t ml_inject_child_in_memory(pid_t pid);

/* Does it see the same files as we do? */
bool ml_inject_shares_files(pid_t pid);

#endif

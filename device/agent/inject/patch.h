/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Applies and removes inline hooks in a running process, as planned by the host (host/tracers/inline/patch_plan.py): code is compared,
 * written and compared again while all threads are stopped outside of it.
 *
 * Code is written through ptrace, which ignores page protection: it stays executable all the time, and no mapping is ever writable and
 * executable (SELinux execmod checks mprotect(2) only). On arm64 the kernel synchronises the instruction caches (flush_ptrace_access()).
 */
#pragma once

#include "agent/inject/checks.h"
#include "agent/inject/patch_plan.h"
#include "agent/protocol/stop_times.h"

struct ml_patch_result {
	ml_u32 n_threads, n_attempts;
	struct ml_stop_times stops;
	struct ml_refusal refusal; /* "": success */
};

/* Before memleak_attach(): writes the slots. 0, or -1 and the refusal. */
int ml_patch_fill_slots(pid_t pid, const struct ml_patches *patches, struct ml_refusal *refusal);

/*
 * is_apply: applies all patches, or none. Else restores every byte; a function that another tool has changed since stays as it is, and is
 * refused. 0, or -1 and the refusal.
 */
int ml_patch_change(pid_t pid, const struct ml_patches *patches, bool is_apply, struct ml_patch_result *result);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inline hooks put into a running process and taken out again, as the host has planned them (host/tracers/inline/patch_plan.py):
 * compared, written and compared again while all threads stand still, none of them inside.
 *
 * Code is written through ptrace, which the protection of a page does not stop: it stays executable all the time, and
 * no mapping is ever writable and executable (SELinux execmod asks for mprotect(2) only). On arm64 the kernel makes the
 * instruction caches agree (flush_ptrace_access()).
 */
#ifndef MEMLEAK_PATCH_H
#define MEMLEAK_PATCH_H

#include "agent/inject/checks.h"
#include "agent/inject/patch_plan.h"
#include "agent/protocol/stop_times.h"

struct ml_patch_result {
	ml_u32 n_threads, n_looks;
	struct ml_stop_times stops;
	struct ml_refusal refusal; /* "" when all went well */
};

/* Before memleak_attach(): fills in the slots. 0, or -1 and the refusal. */
int ml_patch_fill_slots(pid_t pid, const struct ml_patches *patches, struct ml_refusal *refusal);

/* All, or none. 0, or -1 and the refusal. */
int ml_patch_apply(pid_t pid, const struct ml_patches *patches, struct ml_patch_result *result);

/* Every byte as it was. A function that somebody else has changed since stays as it is, which is the refusal then. */
int ml_patch_revert(pid_t pid, const struct ml_patches *patches, struct ml_patch_result *result);

#endif

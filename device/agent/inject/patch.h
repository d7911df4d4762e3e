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
#include "agent/protocol/stop_times.h"
#include "wire.h"

#define ML_PATCHES_MAX 96
#define ML_PATCH_BYTES_MAX 32
#define ML_PATCH_KEPT_MAX 64
#define ML_PATCH_CODE_MAX 256
#define ML_PATCH_MOVES_MAX 24
#define ML_PATCH_SLOTS_MAX 160

/* A thread found at pc goes on at `to`. */
struct ml_patch_move {
	ml_u64 pc, to;
};

struct ml_patch {
	ml_u64 address, trampoline;
	ml_u32 n_kept, n_bytes, n_code, n_moves, n_returns;
	ml_u8 kept[ML_PATCH_KEPT_MAX]; /* right before it: stays; somebody's breakpoints may be in it */
	ml_u8 expected[ML_PATCH_BYTES_MAX], patch[ML_PATCH_BYTES_MAX];
	ml_u8 code[ML_PATCH_CODE_MAX]; /* of the trampoline, which stays */
	struct ml_patch_move moves[ML_PATCH_MOVES_MAX], returns[ML_PATCH_MOVES_MAX];
};

/* A word of the shim's that tells it where a function has been moved to (preload/segment/attach_abi.h: memleak_hooks, preload/pair_entries.h). */
struct ml_patch_slot {
	ml_u64 address, value;
};

struct ml_patches {
	size_t n, n_slots;
	struct ml_patch patches[ML_PATCHES_MAX];
	struct ml_patch_slot slots[ML_PATCH_SLOTS_MAX];
};

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

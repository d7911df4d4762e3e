/* SPDX-License-Identifier: Apache-2.0 */
/* Program counters of the stopped threads of a process, and whether its code may be patched. */
#pragma once

#include "agent/inject/patch_plan.h"
#include "agent/ptrace/threads.h"

struct ml_patch_threads {
	const struct ml_patches *patches;
	bool is_apply; /* else revert */
	const struct ml_ptrace_thread *threads;
	size_t n_threads;
	int memory; /* /proc/PID/mem */
};

/*
 * Whether no thread is inside a patch at a pc without a move, and none will return into it from a signal handler, as its stack shows.
 * Errs on the side of false.
 */
bool ml_patch_threads_are_clear(const struct ml_patch_threads *threads, ml_u32 pid);

/* Moves threads inside a patch to the same point of the other code. */
void ml_patch_threads_move(const struct ml_patch_threads *threads);

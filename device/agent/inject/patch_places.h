/* SPDX-License-Identifier: Apache-2.0 */
/* Where the stopped threads of a process stand, and whether code may be changed under them. */
#ifndef MEMLEAK_PATCH_PLACES_H
#define MEMLEAK_PATCH_PLACES_H

#include <stdbool.h>

#include "agent/inject/patch_plan.h"
#include "agent/ptrace/threads.h"

struct ml_patch_places {
	const struct ml_patches *patches;
	bool is_apply; /* put in; else taken out */
	const struct ml_ptrace_thread *threads;
	size_t n_threads;
};

/*
 * Neither is a thread in the midst of one of the ranges at a place from which it cannot be moved, nor will one come back
 * into it from a signal handler: that is told by a word of its stack. Errs on the side of no.
 */
bool ml_patch_places_are_clear(const struct ml_patch_places *places, ml_u32 pid);

/* Has the threads that stand in one of the ranges go on where the same is done. */
void ml_patch_places_move(const struct ml_patch_places *places);

#endif

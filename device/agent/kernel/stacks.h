/* SPDX-License-Identifier: Apache-2.0 */
/* Recycles kernel stacks that no live block refers to. */
#pragma once

#include "agent/kernel/object.h"

struct ml_kernel_stacks {
	ml_u64 n_given_up; /* except restored ones */
	ml_u64 next_ns;    /* time of the next check */
	bool is_refused;   /* this kernel has no way to wait for programs that are under way */
};

/*
 * Where more than half of the table is in use. The programs go on meanwhile: one may have found a stack just before it is
 * given up, so that what is named after all of those are done is put back. Returns how many live blocks lost theirs to that.
 */
ml_u64 ml_kernel_stacks_recycle(struct ml_kernel_stacks *stacks, const struct ml_kernel *kernel);

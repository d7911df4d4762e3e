/* SPDX-License-Identifier: Apache-2.0 */
/* The command and its descendants, whose kernel memory is counted. */
#pragma once

#include "agent/kernel/object.h"

/* From here on the process counts, and each that it forks. 0, or -1 after an ERROR block. */
int ml_kernel_tree_begin(struct ml_kernel *kernel, ml_u32 pid);

/* Removes ended processes. Returns the number of running ones. */
ml_u32 ml_kernel_tree_sweep(const struct ml_kernel *kernel);

/*
 * Waits, for two seconds at most, until no more memory of ended processes is freed: the kernel frees some after an RCU grace period or from
 * a work queue. on_pause is called meanwhile.
 */
void ml_kernel_tree_settle(const struct ml_kernel *kernel, void (*on_pause)(void *context), void *context);

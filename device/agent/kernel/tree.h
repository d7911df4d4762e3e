/* SPDX-License-Identifier: Apache-2.0 */
/* The command and all the processes that it starts, on whose behalf the kernel's memory is counted. */
#ifndef MEMLEAK_KERNEL_TREE_H
#define MEMLEAK_KERNEL_TREE_H

#include "agent/kernel/object.h"

/* From here on the process counts, and each that it forks. 0, or -1 after an ERROR block. */
int ml_kernel_tree_begin(struct ml_kernel *kernel, ml_u32 pid);

/* Makes room of those that have ended. Returns how many run. */
ml_u32 ml_kernel_tree_look(const struct ml_kernel *kernel);

/*
 * Waits until nothing more comes back of what processes held that have ended: the kernel frees some of it after a
 * grace period of RCU or from a work queue. For two seconds at most. on_pause: called meanwhile.
 */
void ml_kernel_tree_settle(const struct ml_kernel *kernel, void (*on_pause)(void *context), void *context);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The processes below a running one: its children, and theirs (proc_tid_children(5)). */
#pragma once

#include <sys/types.h>

#include "wire.h"

#define ML_DESCENDANTS_MAX 1024

enum ml_descendants {
	ML_DESCENDANTS_ALL,
	ML_DESCENDANTS_MORE,    /* than ML_DESCENDANTS_MAX, or than there is memory for */
	ML_DESCENDANTS_UNKNOWN, /* the kernel has no such lists (CONFIG_PROC_CHILDREN) */
};

/*
 * Calls `use` for each, parents first. A process's children are read after `use` has returned for it, so what it forks later is for the
 * caller to notice from then on.
 */
enum ml_descendants ml_descendants_each(pid_t pid, void (*use)(void *context, ml_u32 pid), void *context);

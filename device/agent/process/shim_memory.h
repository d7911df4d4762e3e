/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of the shim in a process. Its words refer to no block of the program. */
#ifndef MEMLEAK_SHIM_MEMORY_H
#define MEMLEAK_SHIM_MEMORY_H

#include <stddef.h>

#include "wire.h"

#define ML_SHIM_MEMORY_MAX 8 /* one library is the rule; one that was pushed beside an older one makes two */

struct ml_shim_memory {
	size_t n; /* in the order of their addresses */
	struct {
		ml_u64 start, end;
	} all[ML_SHIM_MEMORY_MAX];
};

/* From the text of /proc/PID/maps and the library's program headers, as they are in memory: nothing else tells where its .bss ends. */
void ml_shim_memory_find(struct ml_shim_memory *memory, ml_u32 pid, const char *maps);

/* The first part of [*start, end) that is none of it: sets *start, and returns the part's end; both are end where there is none. */
ml_u64 ml_shim_memory_outside(const struct ml_shim_memory *memory, ml_u64 *start, ml_u64 end);

#endif

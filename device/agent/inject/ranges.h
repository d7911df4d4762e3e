/* SPDX-License-Identifier: Apache-2.0 */
/* Address ranges of code in which a thread may hold a lock that dlopen() takes. */
#pragma once

#include "agent/process/target_objects.h"

enum ml_inject_lock { ML_LOCK_NONE, ML_LOCK_ALLOCATOR, ML_LOCK_LOADER };

struct ml_inject_range {
	ml_u64 start, end;
	enum ml_inject_lock lock;
};

struct ml_inject_ranges {
	struct ml_inject_range *ranges;
	size_t n, room;
};

/*
 * Reads the ranges of the loaded objects. Static functions usually lie between exported ones of the same source file, so the range of an
 * allocator's function extends to the next other exported function on both sides. Errs on the side of more. 0, or -1: out of memory.
 */
int ml_inject_ranges_read(struct ml_inject_ranges *ranges, const struct ml_target_objects *objects);
void ml_inject_ranges_free(struct ml_inject_ranges *ranges);

enum ml_inject_lock ml_inject_ranges_find(const struct ml_inject_ranges *ranges, ml_u64 address);

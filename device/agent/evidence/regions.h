/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger of mapped regions: whole pages, split by munmap at any page. */
#pragma once

#include "wire.h"

/* Sixteen times the limit of one process (vm.max_map_count), because the kernel merges adjacent mappings. */
#define ML_REGIONS_MAX (1u << 20)

struct ml_region {
	ml_u64 start, end;
	ml_u64 timestamp_ns;
	ml_u64 key;
	ml_u32 pid, tid, function;
};

/* Sorted by pid and start, without overlap. All zero: empty. */
struct ml_regions {
	struct ml_region *rows;
	size_t count;
	struct ml_region *memory; /* holds the rows, at any offset */
	size_t room;
	ml_u64 work; /* of all calls so far: rows that were compared or moved */
};

/* Applies one successful mmap, munmap or mremap. -1: out of memory or full, the ledger is unchanged or cut only. */
int ml_regions_apply(struct ml_regions *regions, const struct ml_event *event);

void ml_regions_destroy(struct ml_regions *regions);

/* Removes the regions of a process from before as_of_ns: an exec may be reported after calls of the new program. */
void ml_regions_forget(struct ml_regions *regions, ml_u32 pid, ml_u64 as_of_ns);

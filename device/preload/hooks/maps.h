/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot of the process's mappings and their protection. */
#pragma once

#include <stddef.h>

struct ml_hook_range {
	unsigned long low;
	unsigned long high;
	unsigned int protection; /* PROT_… */
	int is_shared;
};

struct ml_hook_maps {
	struct ml_hook_range *ranges; /* by address, in memory of its own */
	size_t n;
};

/* 0 or -errno; -E2BIG if there are too many. To be dropped after use. */
int ml_hook_maps_read(struct ml_hook_maps *maps);
void ml_hook_maps_drop(struct ml_hook_maps *maps);

/* The mapping that contains an address, or NULL. */
const struct ml_hook_range *ml_hook_maps_find(const struct ml_hook_maps *maps, unsigned long address);

/* 1 if the whole range is readable. */
int ml_hook_maps_can_read(const struct ml_hook_maps *maps, unsigned long address, size_t bytes);

/*
 * Calls `visit` for each line of /proc/self/maps until it returns a value other than 0, and returns that value. Returns
 * 0 at the end, -errno if the file cannot be read. Paths are cut at about 200 characters.
 */
struct ml_hook_line {
	struct ml_hook_range range;
	unsigned long file_offset;
	const char *path; /* zero-terminated; "" = none */
};
long ml_hook_maps_each(long (*visit)(void *context, const struct ml_hook_line *line), void *context);

/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot of the process's mappings and their protection. */
#pragma once

#include <stddef.h>

struct ml_own_mapping {
	unsigned long low;
	unsigned long high;
	unsigned int protection; /* PROT_… */
	int is_shared;
};

struct ml_mappings {
	struct ml_own_mapping *ranges; /* by address, in memory of its own */
	size_t n;
};

/* 0 or -errno; -E2BIG if there are too many. To be dropped after use. */
int ml_mappings_read(struct ml_mappings *maps);
void ml_mappings_drop(struct ml_mappings *maps);

/* The mapping that contains an address, or NULL. */
const struct ml_own_mapping *ml_mappings_find(const struct ml_mappings *maps, unsigned long address);

/* 1 if the whole range is readable. */
int ml_mappings_can_read(const struct ml_mappings *maps, unsigned long address, size_t bytes);

/*
 * Calls `visit` for each line of /proc/self/maps until it returns a value other than 0, and returns that value. Returns
 * 0 at the end, -errno if the file cannot be read. Paths are cut at about 200 characters.
 */
struct ml_own_mapping_line {
	struct ml_own_mapping range;
	unsigned long file_offset;
	const char *path; /* zero-terminated; "" = none */
};
long ml_mappings_each(long (*visit)(void *context, const struct ml_own_mapping_line *line), void *context);

/* SPDX-License-Identifier: Apache-2.0 */
/* The process's mappings at one moment: what may be read, and which protection a page has. */
#pragma once

#include <stddef.h>

struct ml_hook_range {
	unsigned long low;
	unsigned long high;
	unsigned int protection; /* PROT_… */
	int is_shared;
};

struct ml_hook_maps {
	struct ml_hook_range *ranges; /* by address; memory of its own */
	size_t n;
};

/* 0, or -errno; -E2BIG where there are more than can be held. What was read has to be dropped. */
int ml_hook_maps_read(struct ml_hook_maps *maps);
void ml_hook_maps_drop(struct ml_hook_maps *maps);

/* The mapping around an address, or NULL. */
const struct ml_hook_range *ml_hook_maps_find(const struct ml_hook_maps *maps, unsigned long address);

/* 1 when all of it can be read. */
int ml_hook_maps_can_read(const struct ml_hook_maps *maps, unsigned long address, size_t bytes);

/*
 * Goes through /proc/self/maps line by line until `visit` returns something else than 0, which is returned; 0 at the
 * end, -errno when it cannot be read. The line's path is cut at about 200 characters.
 */
struct ml_hook_line {
	struct ml_hook_range range;
	unsigned long file_offset;
	const char *path; /* ends with a zero; "" = none */
};
long ml_hook_maps_each(long (*visit)(void *context, const struct ml_hook_line *line), void *context);

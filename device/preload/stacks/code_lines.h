/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executable lines of /proc/self/maps as last read, to notice unmapped code and to find the ELF file of an address.
 * One list for each of the segment's two code maps, with the same index.
 */
#pragma once

#include "preload/segment/segment.h"

/* Candidates for a mapping's ELF header: the mapping and those below (reasons in the agent's code_map.c). */
#define ML_CODE_HEADERS_MAX 16

struct ml_code_location {
	ml_u64 low; /* of the mapping */
	ml_u32 n_headers;
	ml_u64 headers[ML_CODE_HEADERS_MAX]; /* the most likely first */
};

struct ml_maps_line {
	ml_u64 low;
	ml_u64 high;
	int is_readable;
	int is_code;
	const char *text;
	size_t length;
};

/* For the thread that reads the maps only. */
void ml_code_lines_clear(ml_u32 which);
void ml_code_lines_add(ml_u32 which, const struct ml_maps_line *line);

/* 1 if each line of the old list is in the new one. */
int ml_code_lines_are_kept(ml_u32 old, ml_u32 new);

/*
 * Returns 0 if no line contains the address. The list may change meanwhile; the result is valid if the map is still
 * current afterwards.
 */
int ml_code_lines_find(ml_u32 which, ml_u64 address, struct ml_code_location *location);

/* For a forked child (recorder/forks.h). */
void ml_code_lines_forget(void);

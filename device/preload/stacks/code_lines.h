/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executable lines of /proc/self/maps as last read: to see whether any went away, and to find the ELF file that an
 * address of code belongs to. One list for each of the segment's two code maps, under the same number.
 */
#pragma once

#include <stddef.h>

#include "preload/segment/segment.h"

/* Where the ELF header of a mapping's file may be: in itself or in one below (code_map.c of the agent has the why). */
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

/* Writing one list; only the thread that reads the maps may. */
void ml_code_lines_clear(ml_u32 which);
void ml_code_lines_add(ml_u32 which, const struct ml_maps_line *line);

/* 1 when each line of the old list is in the new one. */
int ml_code_lines_are_kept(ml_u32 old, ml_u32 new);

/* 0 when no line holds the address. Lists may be rewritten meanwhile: what is found is true if the map is still in force. */
int ml_code_lines_find(ml_u32 which, ml_u64 address, struct ml_code_location *location);

/* In a child, whose other threads are gone in the middle of anything. */
void ml_code_lines_forget(void);

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a process to scan: the pages in use of its writable mappings, in pieces. */
#pragma once

#include "agent/scan/scanned_words.h"

struct ml_scan_pieces {
	struct ml_scan_piece *all;
	size_t n, room;
	int pagemap;
	bool has_failed; /* there was no memory for more */
};

/* Empties the list, and keeps its memory. */
void ml_scan_pieces_begin(struct ml_scan_pieces *pieces, int pid);

/* Adds the pages of [start, end) that were ever used; all if that is unknown. */
void ml_scan_pieces_add(struct ml_scan_pieces *pieces, ml_u64 start, ml_u64 end);

/* -1: there was no memory for all. */
int ml_scan_pieces_end(struct ml_scan_pieces *pieces);

/* ---- the shim: its words refer to no block of the program ---- */

#define ML_SHIM_MEMORY_MAX 8 /* one as a rule; two if a library was pushed beside an older one */

struct ml_shim_memory {
	size_t n; /* in the order of their addresses */
	struct {
		ml_u64 start, end;
	} all[ML_SHIM_MEMORY_MAX];
};

/* From the text of /proc/PID/maps and the library's program headers, in memory: nothing else shows where its .bss ends. */
void ml_shim_memory_find(struct ml_shim_memory *memory, ml_u32 pid, const char *maps);

/* The first part of [*start, end) that is none of it: sets *start, and returns the part's end; both are end where there is none. */
ml_u64 ml_shim_memory_outside(const struct ml_shim_memory *memory, ml_u64 *start, ml_u64 end);

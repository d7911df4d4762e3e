/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a process to scan: the pages in use of its writable mappings, in pieces. */
#ifndef MEMLEAK_SCAN_PIECES_H
#define MEMLEAK_SCAN_PIECES_H

#include <stdbool.h>
#include <stddef.h>

#include "agent/scan/scanned_words.h"

struct ml_scan_pieces {
	struct ml_scan_piece *all;
	size_t n, room;
	int pagemap;
	bool has_failed; /* there was no memory for more */
};

/* Forgets those there were; their memory is used again. */
void ml_scan_pieces_begin(struct ml_scan_pieces *pieces, int pid);

/* Pages of [start, end) that were ever used; all if that is unknown. */
void ml_scan_pieces_add(struct ml_scan_pieces *pieces, ml_u64 start, ml_u64 end);

/* -1: there was no memory for all. */
int ml_scan_pieces_end(struct ml_scan_pieces *pieces);

#endif

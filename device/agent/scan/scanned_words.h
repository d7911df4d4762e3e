/* SPDX-License-Identifier: Apache-2.0 */
/* Words of another process that may refer to memory of its own, as SCANNED records (wire_hooks.h). */
#pragma once

#include "wire.h"

#define ML_SCAN_ADDRESS_BITS 48
#define ML_SCAN_GIBIBYTE_BITS 30
#define ML_SCAN_PAGE_BITS 12 /* the smallest pages there are */

/*
 * Pages of memory that a word may refer to, tested for each word that resembles an address. All zero: no memory.
 * Addresses of more than 48 bits (which a program must request from mmap()) are in none.
 */
struct ml_scan_targets {
	ml_u64 low, high; /* bounds of all */
	size_t n_bitmaps;
	/* NULL: nothing; whole_gibibyte: all of it, or no room to be exact; else a bit for each page. */
	const ml_u8 *gibibytes[1u << (ML_SCAN_ADDRESS_BITS - ML_SCAN_GIBIBYTE_BITS)];
};

/* Page-aligned bounds. */
void ml_scan_targets_add(struct ml_scan_targets *targets, ml_u64 start, ml_u64 end);

#define ML_SCAN_PIECE_BYTES (512u << 10) /* stays in the processor's cache while it is searched */
#define ML_SCAN_CHUNKS_MAX 68u

struct ml_scan_piece {
	ml_u64 address;
	ml_u64 bytes; /* at most ML_SCAN_PIECE_BYTES */
};

struct ml_scanned_words {
	const struct ml_scan_targets *targets;
	ml_u64 mask; /* bits of a word that are an address */
	ml_u32 word_bytes;
	ml_u8 *records; /* of which only what is written to takes memory: chunks, each filled by one thread */
	size_t used[ML_SCAN_CHUNKS_MAX]; /* bytes of each chunk's records */
	size_t n_chunks;
	ml_u64 scanned_bytes;
};

/* -1: no room. */
int ml_scanned_words_start(struct ml_scanned_words *words, const struct ml_scan_targets *targets, ml_u32 word_bytes);

/*
 * Scans memory of the process, on as many processors as available (4 at most), and forgets the earlier results: their
 * memory is reused, without page faults. -1: there are more such words than fit. Unreadable memory
 * is left out.
 */
int ml_scanned_words_read(struct ml_scanned_words *words, int pid, const struct ml_scan_piece *pieces, size_t n_pieces);

/* All records, as SCANNED blocks. -1 when the host is gone. */
int ml_scanned_words_write(const struct ml_scanned_words *words);

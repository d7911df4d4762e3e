/* SPDX-License-Identifier: Apache-2.0 */
/* Words of another process that may refer to memory of its own, as SCANNED records (wire_hooks.h). */
#pragma once

#include <stddef.h>

#include "agent/scan/scan_targets.h"
#include "wire.h"

#define ML_SCAN_PIECE_BYTES (512u << 10) /* stays in the processor's cache while it is searched */
#define ML_SCAN_CHUNKS_MAX 68u

struct ml_scan_piece {
	ml_u64 address;
	ml_u64 bytes; /* at most ML_SCAN_PIECE_BYTES */
};

struct ml_scanned_words {
	const struct ml_scan_targets *targets;
	ml_u64 mask;     /* bits of a word that are an address */
	ml_u32 word_bytes;
	ml_u8 *records;  /* of which only what is written to takes memory: chunks, each filled by one thread */
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Words of another process that may refer to memory of its own, as SCANNED records (wire_hooks.h). */
#ifndef MEMLEAK_SCANNED_WORDS_H
#define MEMLEAK_SCANNED_WORDS_H

#include <stdbool.h>
#include <stddef.h>

#include "scan_targets.h"
#include "wire.h"

#define ML_SCAN_PIECE_BYTES (512u << 10) /* stays in the processor's cache while it is searched */

struct ml_scanned_words {
	const struct ml_scan_targets *targets;
	ml_u64 mask;     /* what of a word is an address */
	ml_u32 word_bytes;
	ml_u8 *records;  /* of which only what is written to takes memory */
	size_t n_bytes, room;
	ml_u64 scanned_bytes;
};

/* -1: no room. */
int ml_scanned_words_start(struct ml_scanned_words *words, const struct ml_scan_targets *targets, ml_u32 word_bytes);

/* Searches memory of the process, at most a piece. -1: there are more such words than there is room for. What cannot be read is left out. */
int ml_scanned_words_read(struct ml_scanned_words *words, int pid, ml_u64 address, size_t bytes);

/* All records, as SCANNED blocks. -1 when the host is gone. */
int ml_scanned_words_write(const struct ml_scanned_words *words);

#endif

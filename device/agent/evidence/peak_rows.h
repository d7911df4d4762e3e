/* SPDX-License-Identifier: Apache-2.0 */
/* HIGH_WATER blocks, row by row. */
#ifndef MEMLEAK_PEAK_ROWS_H
#define MEMLEAK_PEAK_ROWS_H

#include "wire.h"

#define ML_PEAK_ROWS 32768u

struct ml_peak_rows {
	struct ml_high_water head; /* count: rows that are not written yet */
	ml_u64 key[ML_PEAK_ROWS], bytes[ML_PEAK_ROWS];
};

/* A key that held nothing is left out. -1: the host is gone. */
int ml_peak_rows_add(struct ml_peak_rows *rows, ml_u64 key, ml_u64 bytes);
int ml_peak_rows_end(struct ml_peak_rows *rows);

/* A part of the peak that is worth to be known by its stack, though the stack holds nothing any more. */
#define ML_PEAK_PART_SHIFT 8

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of memory that a word may refer to, tested for each word that resembles an address. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "wire.h"

#define ML_SCAN_ADDRESS_BITS 48
#define ML_SCAN_GIBIBYTE_BITS 30
#define ML_SCAN_PAGE_BITS 12 /* the smallest pages there are */

/* All zero: no memory. Addresses of more than 48 bits (which a program must request from mmap()) are in none. */
struct ml_scan_targets {
	ml_u64 low, high; /* bounds of all */
	size_t n_bitmaps;
	/* NULL: nothing; ml_scan_whole_gibibyte: all of it, or no room to be exact; else a bit for each page. */
	const ml_u8 *gibibytes[1u << (ML_SCAN_ADDRESS_BITS - ML_SCAN_GIBIBYTE_BITS)];
};

extern const ml_u8 ml_scan_whole_gibibyte[1];

/* Page-aligned bounds. */
void ml_scan_targets_add(struct ml_scan_targets *targets, ml_u64 start, ml_u64 end);

/* address: within the bounds of all. */
static inline bool ml_scan_targets_hold(const struct ml_scan_targets *targets, ml_u64 address)
{
	const ml_u8 *pages = targets->gibibytes[address >> ML_SCAN_GIBIBYTE_BITS];
	ml_u64 page = address >> ML_SCAN_PAGE_BITS & ((1u << (ML_SCAN_GIBIBYTE_BITS - ML_SCAN_PAGE_BITS)) - 1);

	return pages && (pages == ml_scan_whole_gibibyte || pages[page / 8] >> page % 8 & 1);
}

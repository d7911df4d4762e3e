// SPDX-License-Identifier: Apache-2.0
#include "agent/evidence/peak_rows.h"

#include "agent/protocol/blocks.h"

static int write_rows(struct ml_peak_rows *rows, ml_u32 is_last)
{
	size_t bytes = rows->head.count * sizeof(ml_u64);
	struct iovec parts[] = { { &rows->head, sizeof(rows->head) }, { rows->key, bytes }, { rows->bytes, bytes } };

	rows->head.last = is_last;
	if (ml_blocks_writev(ML_BLOCK_HIGH_WATER, parts, 3))
		return -1;
	rows->head.count = 0;
	return 0;
}

int ml_peak_rows_add(struct ml_peak_rows *rows, ml_u64 key, ml_u64 bytes)
{
	if (!bytes)
		return 0;
	rows->key[rows->head.count] = key;
	rows->bytes[rows->head.count] = bytes;
	return ++rows->head.count == ML_PEAK_ROWS ? write_rows(rows, 0) : 0;
}

int ml_peak_rows_end(struct ml_peak_rows *rows)
{
	return write_rows(rows, 1);
}

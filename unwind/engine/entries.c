/* SPDX-License-Identifier: Apache-2.0 */
/* Where the FDEs of a section begin, and their CIEs (DWARF 5 section 6.4.1, LSB 5.0 section 10.6). */
#include "rows.h"

static uint32_t u32_at(const uint8_t *data)
{
	return data[0] | data[1] << 8 | data[2] << 16 | (uint32_t)data[3] << 24;
}

void entries_walk(struct entries *entries)
{
	while (entries->at + 8 <= entries->size && entries->count < entries->capacity) {
		int64_t at = entries->at;
		uint32_t length = u32_at(entries->data + at), id = u32_at(entries->data + at + 4);
		int64_t cie = entries->is_eh ? at + 4 - id : id;
		int is_fde = entries->is_eh ? id != 0 : id != UINT32_MAX;

		if (!length || length == UINT32_MAX || at + 4 + (int64_t)length > entries->size)
			return;
		if (is_fde && cie >= 0) {
			entries->offsets[entries->count] = at;
			entries->cies[entries->count++] = cie;
		}
		entries->at = at + 4 + length;
	}
}

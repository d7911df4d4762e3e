/* SPDX-License-Identifier: Apache-2.0 */
/* Only rows that fit columns; a program with another one is left to the scalar decoder. */
#include "rows.h"

#include <stddef.h>

#include "cfi/program.h"

#define HASH_MULTIPLIER 0x9E3779B97F4A7C15ull

static int equal(const int32_t *a, const int32_t *b, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		if (a[i] != b[i])
			return 0;
	return 1;
}

/* The number of a distinct state, -1 if the table is full. A column behind the last one is read, too, and is always 0. */
static int64_t line_of(struct rows *rows, const int32_t *state)
{
	uint64_t even = 0, odd = 0, hash; /* two chains, whose multiplications overlap */

	for (int64_t i = 0; i < rows->columns; i += 2) {
		even = (even ^ (uint32_t)state[i]) * HASH_MULTIPLIER;
		odd = (odd ^ (uint32_t)state[i + 1]) * HASH_MULTIPLIER;
		even ^= even >> 32;
		odd ^= odd >> 32;
	}
	hash = even ^ odd * HASH_MULTIPLIER >> 32;
	for (uint64_t slot = hash & rows->slot_mask;; slot = (slot + 1) & rows->slot_mask) {
		int32_t line = rows->slots[slot];

		if (line >= 0 && equal(rows->states + line * rows->columns, state, rows->columns))
			return line;
		if (line >= 0)
			continue;
		if (rows->state_count == rows->state_capacity)
			return -1;
		__builtin_memcpy(rows->states + rows->state_count * rows->columns, state,
				 (size_t)rows->columns * sizeof(*state));
		rows->slots[slot] = (int32_t)rows->state_count;
		return rows->state_count++;
	}
}

/* Appends the rows of one program. Returns 0 if it is not plain or a table is full. */
static int run(struct rows *rows, int64_t number, struct ml_cfi_machine *machine)
{
	while (ml_cfi_next_row(machine) && ml_cfi_is_plain(machine)) {
		int64_t line = line_of(rows, machine->state);

		if (line < 0 || rows->row_count == rows->row_capacity)
			return 0;
		rows->program[rows->row_count] = number;
		rows->starts[rows->row_count] = (int64_t)machine->location;
		rows->line[rows->row_count++] = line;
		if (machine->next == ML_CFI_END)
			return 1;
	}
	return 0;
}

void rows_run(struct rows *rows)
{
	int32_t state[ROWS_COLUMNS_MAX + 1] = { 0 }, remembered[ROWS_DEPTH_MAX * ROWS_COLUMNS_MAX];

	for (int64_t i = 0; i < rows->programs; i++) {
		int64_t cie = rows->cie[i], before = rows->row_count;
		struct ml_cfi_machine machine = { .program = { .at = rows->data + rows->at[i],
							       .end = rows->data + rows->end[i] },
						  .code_align = (uint64_t)rows->code_align[cie],
						  .data_align = rows->data_align[cie],
						  .pointer_encoding = ML_DW_EH_PE_OMIT,
						  .column_of = rows->column_of,
						  .initial = rows->initial + cie * rows->columns,
						  .state = state,
						  .remembered = remembered,
						  .columns = (uint32_t)rows->columns,
						  .depth_max = ROWS_DEPTH_MAX };

		__builtin_memcpy(state, machine.initial, (size_t)rows->columns * sizeof(*state));
		rows->is_done[i] = (uint8_t)run(rows, i, &machine);
		if (!rows->is_done[i])
			rows->row_count = before;
	}
}

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

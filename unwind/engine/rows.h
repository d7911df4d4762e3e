/* SPDX-License-Identifier: Apache-2.0 */
/* The call frame instructions of many FDEs in, their rows out. unwind/cfi/engine_rows.py mirrors this. */
#pragma once

#include <stdint.h>

#define ROWS_COLUMNS_MAX 160
#define ROWS_DEPTH_MAX 4 /* of DW_CFA_remember_state */

struct rows {
	/* n programs: [at, end) in data */
	const uint8_t *data;
	const int64_t *at, *end, *cie;
	int64_t programs;
	/* by CIE */
	const int64_t *code_align, *data_align;
	const int32_t *initial;
	const uint8_t *column_of; /* by register below ML_CFI_REGISTERS, 0 = none */
	int64_t columns;
	/* rows in the order of programs; starts: from the function's start; line: index into the distinct states */
	int64_t *program, *starts, *line;
	int64_t row_capacity, row_count;
	int32_t *states;
	int64_t state_capacity, state_count;
	int32_t *slots; /* a hash of states: their numbers, -1 = free */
	uint64_t slot_mask;
	uint8_t *is_done;
};

/* columns <= ROWS_COLUMNS_MAX, as in cfi/program.h. Programs that are not plain or do not fit stay not done. */
void rows_run(struct rows *rows);

/* A walk from FDE to FDE (LSB 5.0 §10.6), up to the first entry that is not a plain one of 32-bit DWARF. */
struct entries {
	const uint8_t *data;
	int64_t size, at; /* at moves on */
	int64_t *offsets, *cies;
	int64_t capacity, count;
	int32_t is_eh, unused;
};

void entries_walk(struct entries *entries);

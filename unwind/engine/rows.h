/* SPDX-License-Identifier: Apache-2.0 */
/* The call frame instructions of many FDEs in, their rows out. unwind/cfi/engine_rows.py mirrors this. */
#ifndef ROWS_H
#define ROWS_H

#include <stdint.h>

/* Columns of a state, and values of a register's column that are not offsets from the CFA. */
enum { CFA_REGISTER, CFA_OFFSET, IS_SIGNED, CLASS, FIRST_RULE };
#define ROWS_UNDEFINED (INT32_MIN + 1)
#define ROWS_SAME_VALUE (INT32_MIN + 2)
#define ROWS_COLUMNS_MAX 160
#define ROWS_DEPTH_MAX 4 /* of DW_CFA_remember_state */

struct rows {
	/* n programs: [at, end) in data, behind whose last byte 16 more can be read */
	const uint8_t *data;
	const int64_t *at, *end, *cie;
	int64_t programs;
	/* by CIE */
	const int64_t *code_align, *data_align;
	const int32_t *initial;
	const int64_t *column_of; /* by register below 128, -1 = none */
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

/* columns <= ROWS_COLUMNS_MAX. Programs that are not plain or do not fit stay not done. */
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

#endif

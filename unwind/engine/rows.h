/* SPDX-License-Identifier: Apache-2.0 */
/* unwind/cfi/lockstep.py as machine code: the call frame instructions of many FDEs. unwind/cfi/engine_rows.py mirrors this. */
#ifndef ROWS_H
#define ROWS_H

#include <stdint.h>

/* Columns of a state, and what stands in that of a register instead of an offset (unwind/cfi/lockstep.py). */
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
	/* rows in the order of programs: whose, where (from the function's start), and which of the distinct states */
	int64_t *program, *start, *line;
	int64_t row_capacity, row_count;
	int32_t *states;
	int64_t state_capacity, state_count;
	int32_t *slots; /* a hash of states: their numbers, -1 = free */
	uint64_t slot_mask;
	uint8_t *is_done;
};

/* 0, or -1 where the arrays are too small. */
int32_t rows_run(struct rows *rows);

/* CfiSection's walk from FDE to FDE, up to the first entry that is not a plain one of 32-bit DWARF. */
struct entries {
	const uint8_t *data;
	int64_t size, at; /* at moves on */
	int64_t *offsets, *cies;
	int64_t capacity, count;
	int32_t is_eh, unused;
};

void entries_walk(struct entries *entries);

#endif

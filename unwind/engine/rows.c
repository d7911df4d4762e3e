/* SPDX-License-Identifier: Apache-2.0 */
/* Only what compilers write all day; a program with anything else is given back for the scalar decoder. */
#include "rows.h"

#define HASH_MULTIPLIER 0x9E3779B97F4A7C15ull

enum result { RAN, NOT_PLAIN };

struct machine {
	struct rows *rows;
	const uint8_t *at, *end;
	const int32_t *initial;
	int64_t code_align, data_align, number, location;
	int depth;
	int32_t state[ROWS_COLUMNS_MAX];
	int32_t remembered[ROWS_DEPTH_MAX][ROWS_COLUMNS_MAX];
};

static void copy(int32_t *to, const int32_t *from, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		to[i] = from[i];
}

static int equal(const int32_t *a, const int32_t *b, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		if (a[i] != b[i])
			return 0;
	return 1;
}

/* The number of a distinct state, -1 if the table is full. */
static int64_t line_of(struct rows *rows, const int32_t *state)
{
	uint64_t hash = 0;

	for (int64_t i = 0; i < rows->columns; i++)
		hash = (hash ^ (uint32_t)state[i]) * HASH_MULTIPLIER, hash ^= hash >> 32;
	for (uint64_t slot = hash & rows->slot_mask;; slot = (slot + 1) & rows->slot_mask) {
		int32_t line = rows->slots[slot];

		if (line >= 0 && equal(rows->states + line * rows->columns, state, rows->columns))
			return line;
		if (line >= 0)
			continue;
		if (rows->state_count == rows->state_capacity)
			return -1;
		copy(rows->states + rows->state_count * rows->columns, state, rows->columns);
		rows->slots[slot] = (int32_t)rows->state_count;
		return rows->state_count++;
	}
}

/* The row that ends at this location. */
static enum result emit(struct machine *m)
{
	struct rows *rows = m->rows;
	int64_t line = line_of(rows, m->state);

	if (line < 0 || rows->row_count == rows->row_capacity)
		return NOT_PLAIN;
	rows->program[rows->row_count] = m->number;
	rows->starts[rows->row_count] = m->location;
	rows->line[rows->row_count++] = line;
	return RAN;
}

/* Up to 3 bytes of LEB128: more would not fit a column; -1. */
static int64_t uleb(struct machine *m)
{
	int64_t value = 0;

	for (int shift = 0; shift < 21; shift += 7) {
		uint8_t byte = *m->at++;

		value |= (int64_t)(byte & 0x7F) << shift;
		if (byte < 0x80)
			return value;
	}
	return -1;
}

static enum result advance(struct machine *m, int64_t delta)
{
	enum result result = delta ? emit(m) : RAN;

	m->location += delta * m->code_align;
	return result;
}

static enum result advance_by(struct machine *m, int bytes)
{
	int64_t delta = 0;

	for (int i = 0; i < bytes; i++)
		delta |= (int64_t)*m->at++ << 8 * i;
	return advance(m, delta);
}

static int64_t column_of(const struct machine *m, int64_t number)
{
	return number < 0 || number > 127 ? -1 : m->rows->column_of[number];
}

static enum result set_rule(struct machine *m, int64_t number, int64_t value)
{
	int64_t column = column_of(m, number);

	if (column < 0)
		return NOT_PLAIN;
	m->state[column] = (int32_t)value;
	return RAN;
}

static enum result set_offset(struct machine *m, int64_t number)
{
	int64_t value = uleb(m);

	return value < 0 ? NOT_PLAIN : set_rule(m, number, value * m->data_align);
}

static enum result restore(struct machine *m, int64_t number)
{
	int64_t column = column_of(m, number);

	return column < 0 ? NOT_PLAIN : set_rule(m, number, m->initial[column]);
}

static enum result remember_state(struct machine *m)
{
	if (m->depth == ROWS_DEPTH_MAX)
		return NOT_PLAIN;
	copy(m->remembered[m->depth++], m->state, m->rows->columns);
	return RAN;
}

static enum result restore_state(struct machine *m)
{
	if (!m->depth)
		return NOT_PLAIN;
	copy(m->state, m->remembered[--m->depth], m->rows->columns);
	return RAN;
}

static enum result def_cfa_register(struct machine *m)
{
	int64_t number = uleb(m);

	if (number < 0 || number > 127)
		return NOT_PLAIN;
	m->state[CFA_REGISTER] = (int32_t)number;
	return RAN;
}

static enum result def_cfa_offset(struct machine *m)
{
	int64_t offset = uleb(m);

	m->state[CFA_OFFSET] = (int32_t)offset;
	return offset < 0 ? NOT_PLAIN : RAN;
}

static enum result def_cfa(struct machine *m)
{
	enum result result = def_cfa_register(m);

	return result == RAN ? def_cfa_offset(m) : result;
}

static enum result step(struct machine *m)
{
	uint8_t opcode = *m->at++;

	switch (opcode >> 6) {
	case 1:
		return advance(m, opcode & 0x3F);
	case 2:
		return set_offset(m, opcode & 0x3F);
	case 3:
		return restore(m, opcode & 0x3F);
	}
	switch (opcode) {
	case 0x00: /* nop */
		return RAN;
	case 0x02:
		return advance_by(m, 1);
	case 0x03:
		return advance_by(m, 2);
	case 0x04:
		return advance_by(m, 4);
	case 0x05: /* offset_extended */
		return set_offset(m, uleb(m));
	case 0x07:
		return set_rule(m, uleb(m), ROWS_UNDEFINED);
	case 0x08:
		return set_rule(m, uleb(m), ROWS_SAME_VALUE);
	case 0x0A:
		return remember_state(m);
	case 0x0B:
		return restore_state(m);
	case 0x0C:
		return def_cfa(m);
	case 0x0D:
		return def_cfa_register(m);
	case 0x0E:
		return def_cfa_offset(m);
	case 0x2C: /* AARCH64_negate_ra_state_with_pc, as the scalar decoder reads it */
	case 0x2D: /* AARCH64_negate_ra_state */
		m->state[IS_SIGNED] ^= 1;
		return RAN;
	case 0x2E: /* GNU_args_size */
		return uleb(m) < 0 ? NOT_PLAIN : RAN;
	}
	return NOT_PLAIN;
}

static enum result run(struct machine *m)
{
	while (m->at < m->end) {
		enum result result = step(m);

		if (result != RAN)
			return result;
	}
	return m->at > m->end ? NOT_PLAIN : emit(m);
}

void rows_run(struct rows *rows)
{
	struct machine m = {.rows = rows};

	for (m.number = 0; m.number < rows->programs; m.number++) {
		int64_t cie = rows->cie[m.number], before = rows->row_count;

		m.at = rows->data + rows->at[m.number];
		m.end = rows->data + rows->end[m.number];
		m.initial = rows->initial + cie * rows->columns;
		m.code_align = rows->code_align[cie];
		m.data_align = rows->data_align[cie];
		m.location = m.depth = 0;
		copy(m.state, m.initial, rows->columns);
		rows->is_done[m.number] = run(&m) == RAN;
		if (!rows->is_done[m.number])
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

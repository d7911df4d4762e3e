// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#define REGISTER_MAX 1024 /* one that is not below it is malformed */
#define DW_OP_BREG0 0x70
#define DW_OP_DEREF 0x06

typedef struct ml_cfi_machine machine;

enum operation {
	MALFORMED,
	NOTHING,
	ADVANCE,
	GO_TO,
	OFFSET,
	MARK,
	EXPRESSION,
	RESTORE,
	REMEMBER,
	RESTORE_STATE,
	DEF_CFA,
	DEF_CFA_REGISTER,
	DEF_CFA_OFFSET,
	DEF_CFA_EXPRESSION,
	NEGATE_SIGNED,
};

/* Of the last operand. A number below POINTER: so many bytes. */
enum form { NONE = 0, POINTER = 9, UNSIGNED, FACTORED, FACTORED_SIGNED, FACTORED_NEGATIVE, BLOCK };

static const struct instruction {
	ml_u8 operation;
	ml_u8 has_register; /* as its first operand */
	ml_u8 form;
	ml_s32 mark;
} instructions[0x40] = {
	[0x01] = { GO_TO, 0, POINTER, 0 }, /* DW_CFA_set_loc */
	[0x02] = { ADVANCE, 0, 1, 0 }, /* DW_CFA_advance_loc1, 2, 4 */
	[0x03] = { ADVANCE, 0, 2, 0 },
	[0x04] = { ADVANCE, 0, 4, 0 },
	[0x05] = { OFFSET, 1, FACTORED, 0 }, /* DW_CFA_offset_extended */
	[0x06] = { RESTORE, 1, NONE, 0 }, /* DW_CFA_restore_extended */
	[0x07] = { MARK, 1, NONE, ML_CFI_UNDEFINED },
	[0x08] = { MARK, 1, NONE, ML_CFI_SAME_VALUE },
	[0x09] = { MARK, 1, UNSIGNED, ML_CFI_OTHERWISE }, /* DW_CFA_register */
	[0x0a] = { REMEMBER, 0, NONE, 0 }, /* DW_CFA_remember_state */
	[0x0b] = { RESTORE_STATE, 0, NONE, 0 },
	[0x0c] = { DEF_CFA, 1, UNSIGNED, 0 },
	[0x0d] = { DEF_CFA_REGISTER, 1, NONE, 0 },
	[0x0f] = { DEF_CFA_EXPRESSION, 0, BLOCK, 0 },
	[0x10] = { EXPRESSION, 1, BLOCK, 0 },
	[0x11] = { OFFSET, 1, FACTORED_SIGNED, 0 }, /* DW_CFA_offset_extended_sf */
	[0x12] = { DEF_CFA, 1, FACTORED_SIGNED, 0 }, /* DW_CFA_def_cfa_sf */
	[0x13] = { DEF_CFA_OFFSET, 0, FACTORED_SIGNED, 0 }, /* DW_CFA_def_cfa_offset_sf */
	[0x14] = { MARK, 1, UNSIGNED, ML_CFI_OTHERWISE }, /* DW_CFA_val_offset */
	[0x15] = { MARK, 1, UNSIGNED, ML_CFI_OTHERWISE }, /* DW_CFA_val_offset_sf: sleb, of the same length */
	[0x16] = { MARK, 1, BLOCK, ML_CFI_OTHERWISE }, /* DW_CFA_val_expression */
	[0x1d] = { ADVANCE, 0, 8, 0 }, /* DW_CFA_MIPS_advance_loc8 */
	[0x2c] = { NEGATE_SIGNED, 0, NONE, 0 }, /* DW_CFA_AARCH64_negate_ra_state_with_pc */
	[0x2d] = { NEGATE_SIGNED, 0, NONE, 0 }, /* DW_CFA_AARCH64_negate_ra_state */
	[0x2e] = { NOTHING, 0, UNSIGNED, 0 }, /* DW_CFA_GNU_args_size: matters to exception handlers only */
	[0x2f] = { OFFSET, 1, FACTORED_NEGATIVE, 0 }, /* DW_CFA_GNU_negative_offset_extended */
};

static void copy(ml_s32 *to, const ml_s32 *from, ml_u32 count)
{
	for (ml_u32 i = 0; i < count; i++)
		to[i] = from[i];
}

static ml_s64 factored(const machine *m, ml_s64 operand)
{
	ml_s64 product;

	return __builtin_mul_overflow(operand, m->data_align, &product) ? ML_CFI_OFFSET_MAX + 1 : product;
}

/* BLOCK: 0, and the block in *block. */
static ml_s64 read_operand(machine *m, ml_u8 form, struct ml_cfi_bytes *block)
{
	switch (form) {
	case POINTER: return (ml_s64)(ml_cfi_pointer(&m->program, m->pointer_encoding) - m->function);
	case UNSIGNED: return (ml_s64)ml_cfi_uleb(&m->program);
	case FACTORED: return factored(m, (ml_s64)ml_cfi_uleb(&m->program));
	case FACTORED_SIGNED: return factored(m, ml_cfi_sleb(&m->program));
	case FACTORED_NEGATIVE: return factored(m, (ml_s64)-ml_cfi_uleb(&m->program));
	case BLOCK: *block = ml_cfi_take(&m->program, ml_cfi_uleb(&m->program)); return 0;
	default: return (ml_s64)ml_cfi_number(&m->program, form);
	}
}

static void go_to(machine *m, ml_u64 location)
{
	m->is_malformed |= location < m->location;
	if (location > m->location)
		m->next = location;
}

static void advance(machine *m, ml_u64 delta)
{
	ml_u64 distance;

	if (__builtin_mul_overflow(delta, m->code_align, &distance))
		m->is_malformed = 1;
	else
		go_to(m, m->location + distance);
}

static int fits(ml_s64 offset)
{
	return offset <= ML_CFI_OFFSET_MAX && offset >= -ML_CFI_OFFSET_MAX;
}

static void set_rule(machine *m, ml_u64 number, ml_s32 value)
{
	ml_u8 column = number < ML_CFI_REGISTERS ? m->column_of[number] : 0;

	if (column)
		m->state[column] = value;
	m->is_unusual |= !column || value == ML_CFI_OTHERWISE || value == ML_CFI_AT_FP;
}

static void set_offset(machine *m, ml_u64 number, ml_s64 offset)
{
	set_rule(m, number, fits(offset) ? (ml_s32)offset : ML_CFI_OTHERWISE);
}

static void restore(machine *m, ml_u64 number)
{
	set_rule(m, number, m->initial[number < ML_CFI_REGISTERS ? m->column_of[number] : 0]);
}

static void set_cfa_register(machine *m, ml_u64 number)
{
	m->is_unusual |= number >= ML_CFI_REGISTERS;
	m->state[ML_CFI_CFA_REGISTER] = (ml_s32)number;
}

static void set_cfa_offset(machine *m, ml_s64 offset)
{
	m->is_unusual |= !fits(offset);
	m->state[ML_CFI_CFA_OFFSET] = fits(offset) ? (ml_s32)offset : ML_CFI_OFFSET_MAX;
}

static void change_cfa_offset(machine *m, ml_s64 offset)
{
	m->is_malformed |= m->state[ML_CFI_CFA_REGISTER] < 0;
	set_cfa_offset(m, offset);
}

/* DW_OP_breg<fp> offset; DW_OP_deref: how GCC encodes the CFA of functions that align their stack. */
static void set_cfa_expression(machine *m, struct ml_cfi_bytes code)
{
	ml_s64 offset;

	m->is_malformed |= code.at == code.end;
	m->is_unusual = 1;
	m->state[ML_CFI_CFA_REGISTER] = ML_CFI_CFA_OTHERWISE;
	if (ml_cfi_number(&code, 1) != (ml_u64)DW_OP_BREG0 + m->fp)
		return;
	offset = ml_cfi_sleb(&code);
	if (ml_cfi_number(&code, 1) != DW_OP_DEREF || code.at != code.end)
		return;
	set_cfa_offset(m, offset);
	m->state[ML_CFI_CFA_REGISTER] = ML_CFI_CFA_FP_DEREF;
}

/* DW_OP_breg<fp> 0: where GCC's functions that align their stack keep the frame pointer. */
static int is_at_fp(const machine *m, const struct ml_cfi_bytes *code)
{
	return code->end - code->at == 2 && code->at[0] == DW_OP_BREG0 + m->fp && !code->at[1];
}

static void remember(machine *m)
{
	if (m->depth < m->depth_max)
		copy(m->remembered + m->depth++ * m->columns, m->state, m->columns);
	else
		m->is_malformed = 1;
}

/* The CFA too, as GCC and LLVM mean it. */
static void restore_state(machine *m)
{
	if (m->depth)
		copy(m->state, m->remembered + --m->depth * m->columns, m->columns);
	else
		m->is_malformed = 1;
}

static void run(machine *m, const struct instruction *instruction, ml_u64 number, ml_s64 operand,
		const struct ml_cfi_bytes *block)
{
	switch ((enum operation)instruction->operation) {
	case MALFORMED: m->is_malformed = 1; break;
	case NOTHING: break;
	case ADVANCE: advance(m, (ml_u64)operand); break;
	case GO_TO:
		m->is_malformed |= operand < 0;
		go_to(m, (ml_u64)operand);
		break;
	case REMEMBER: remember(m); break;
	case RESTORE_STATE: restore_state(m); break;
	case DEF_CFA:
		set_cfa_register(m, number);
		set_cfa_offset(m, operand);
		break;
	case DEF_CFA_REGISTER:
		m->is_malformed |= m->state[ML_CFI_CFA_REGISTER] < 0;
		set_cfa_register(m, number);
		break;
	case DEF_CFA_OFFSET: change_cfa_offset(m, operand); break;
	case DEF_CFA_EXPRESSION: set_cfa_expression(m, *block); break;
	case NEGATE_SIGNED: m->state[ML_CFI_IS_SIGNED] ^= 1; break;
	case OFFSET: set_offset(m, number, operand); break;
	case MARK: set_rule(m, number, instruction->mark); break;
	case EXPRESSION: set_rule(m, number, is_at_fp(m, block) ? ML_CFI_AT_FP : ML_CFI_OTHERWISE); break;
	case RESTORE: restore(m, number); break;
	}
}

static void run_instruction(machine *m)
{
	ml_u8 opcode = *m->program.at++, low = opcode & 0x3f;
	const struct instruction *instruction = &instructions[low];
	struct ml_cfi_bytes block; /* of form BLOCK, which every operation that reads it has */
	ml_u64 number = low;

	if (opcode >= 0xc0) { /* DW_CFA_restore */
		restore(m, low);
	} else if (opcode >= 0x80) { /* DW_CFA_offset */
		set_offset(m, low, factored(m, (ml_s64)ml_cfi_uleb(&m->program)));
	} else if (opcode >= 0x40) { /* DW_CFA_advance_loc */
		advance(m, low);
	} else if (opcode == 0x0e) { /* DW_CFA_def_cfa_offset: here and not in the table, because it is frequent */
		change_cfa_offset(m, (ml_s64)ml_cfi_uleb(&m->program));
	} else if (opcode) { /* not DW_CFA_nop */
		if (instruction->has_register)
			number = ml_cfi_uleb(&m->program);
		m->is_malformed |= number >= REGISTER_MAX;
		run(m, instruction, number, read_operand(m, instruction->form, &block), &block);
	}
}

int ml_cfi_next_row(machine *m)
{
	m->location = m->next;
	m->next = ML_CFI_END;
	while (m->program.at < m->program.end && m->next == ML_CFI_END && !m->is_malformed)
		run_instruction(m);
	return !m->is_malformed && !m->program.is_overrun;
}

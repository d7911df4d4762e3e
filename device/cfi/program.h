/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Call frame instructions (DWARF 5 §6.4.2) to rows, for the unwinder's engine, the agent and the shim. Freestanding:
 * the caller gives the memory of all states. unwind/cfi/program.py is the reference.
 */
#pragma once

#include "bytes.h"

/* Columns of a state. CLASS: a number of the caller's. The registers that the caller has chosen follow. */
enum { ML_CFI_CFA_REGISTER, ML_CFI_CFA_OFFSET, ML_CFI_IS_SIGNED, ML_CFI_CLASS, ML_CFI_FIRST_RULE };

/* A CFA that is an expression, in place of its register: DW_OP_breg<fp> CFA_OFFSET; DW_OP_deref, or another one. */
enum { ML_CFI_CFA_OTHERWISE = -1, ML_CFI_CFA_FP_DEREF = -2 };

/* In a register's column, in place of an offset from the CFA. AT_FP: *(frame pointer). */
enum { ML_CFI_NO_RULE = -__INT32_MAX__ - 1, ML_CFI_UNDEFINED, ML_CFI_SAME_VALUE, ML_CFI_OTHERWISE, ML_CFI_AT_FP };

#define ML_CFI_OFFSET_MAX (1 << 30) /* a larger offset is OTHERWISE; of the CFA, it becomes this one */
#define ML_CFI_REGISTERS 128     /* that can have a column */
#define ML_CFI_END (~0ull)

struct ml_cfi_machine {
	struct ml_cfi_bytes program;
	ml_u64 code_align;
	ml_s64 data_align;
	ml_u64 function; /* its start, and the encoding of pointers to code: for DW_CFA_set_loc */
	ml_u8 pointer_encoding;
	ml_u8 fp; /* DWARF number of the frame pointer */
	ml_u32 is_malformed;
	ml_u32 is_unusual; /* a rule was about a register without a column, or is OTHERWISE or AT_FP, or the CFA is an expression */
	const ml_u8 *column_of; /* by register, 0 = none */
	const ml_s32 *initial; /* the state after the CIE's instructions */
	ml_s32 *state, *remembered;
	ml_u32 columns, depth, depth_max; /* depth_max: states that fit in `remembered` */
	ml_u64 location, next; /* state[] holds from location up to next, both from the function's start */
};

/* Runs to the end of the next row; next is ML_CFI_END in the last one. Returns 0 if the program is malformed. */
int ml_cfi_next_row(struct ml_cfi_machine *machine);

static inline int ml_cfi_is_plain(const struct ml_cfi_machine *machine)
{
	return !machine->is_unusual && !machine->program.is_long;
}

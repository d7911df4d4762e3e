// SPDX-License-Identifier: Apache-2.0
/* The row at one pc, as a rule for the tracers' walk. */
#include "cfi.h"

#include "program.h"

#define REMEMBERED_MAX 16

enum { RETURN_ADDRESS = ML_CFI_FIRST_RULE, FRAME_POINTER, COLUMNS };

const struct ml_cfi_arch ml_cfi_x86_64 = {
	.elf_machine = 62, .sp = 7, .fp = 6, .return_address = 16, .sp_slot = 19, .fp_slot = 4, .pc_slot = 16
};

/* A user's address has 48 bits where no mmap() asked for more (arm64 Documentation/memory.rst). */
const struct ml_cfi_arch ml_cfi_arm64 = { .elf_machine = 183,
					  .sp = 31,
					  .fp = 29,
					  .return_address = 30,
					  .sp_slot = 31,
					  .fp_slot = 29,
					  .pc_slot = 32,
					  .link_slot = 30,
					  .signature_mask = ~0ull << 48 };

const struct ml_cfi_arch *ml_cfi_native(void)
{
#if defined(__x86_64__)
	return &ml_cfi_x86_64;
#elif defined(__aarch64__)
	return &ml_cfi_arm64;
#else
	return NULL;
#endif
}

static void copy(ml_s32 *to, const ml_s32 *from)
{
	for (int i = 0; i < COLUMNS; i++)
		to[i] = from[i];
}

/* Runs the program in [start, end) up to the row that holds the offset from the function's start. */
static enum ml_cfi_found run(struct ml_cfi_machine *machine, struct ml_remote_memory *memory, ml_u32 pid, ml_u64 start,
			     ml_u64 end, ml_u64 offset)
{
	if (end - start > ML_CFI_PROGRAM_BYTES_MAX)
		return ML_CFI_ABSENT;
	if (ml_remote_memory_open(memory, pid, start, end, &machine->program))
		return ML_CFI_UNREADABLE;
	do {
		if (!ml_cfi_next_row(machine))
			return ML_CFI_ABSENT;
	} while (machine->next <= offset);
	return ML_CFI_FOUND;
}

/* Words below the CFA; 0 where a rule cannot say it. */
static ml_u16 words_below(ml_s32 offset)
{
	ml_s64 bytes = -(ml_s64)offset;

	return bytes < 0 || bytes % 8 || bytes / 8 >= ML_FRAME_FP_AT_FP ? 0 : (ml_u16)(bytes / 8);
}

static enum ml_frame_kind kind_of(const struct ml_cfi_arch *arch, ml_s32 cfa_register)
{
	if (cfa_register == ML_CFI_CFA_FP_DEREF)
		return ML_FRAME_FP_DEREF;
	if (cfa_register == arch->sp)
		return ML_FRAME_SP;
	return cfa_register == arch->fp ? ML_FRAME_FP : ML_FRAME_NONE;
}

static void write_rule(const struct ml_cfi_arch *arch, const ml_s32 *state, struct ml_frame_rule *rule)
{
	ml_s32 saved_fp = state[FRAME_POINTER], offset = state[ML_CFI_CFA_OFFSET];
	ml_u16 ra_words = words_below(state[RETURN_ADDRESS]);
	ml_u16 fp_words = saved_fp == ML_CFI_AT_FP ? ML_FRAME_FP_AT_FP : words_below(saved_fp);
	int is_fp_kept = saved_fp == ML_CFI_NO_RULE || saved_fp == ML_CFI_SAME_VALUE;
	enum ml_frame_kind kind = kind_of(arch, state[ML_CFI_CFA_REGISTER]);

	if (state[RETURN_ADDRESS] == ML_CFI_UNDEFINED) {
		rule->cfa = ML_FRAME_END;
		return;
	}
	if (kind == ML_FRAME_NONE || !ra_words || (kind == ML_FRAME_SP && fp_words == ML_FRAME_FP_AT_FP) ||
	    (!fp_words && !is_fp_kept) || offset < -(1 << 27) || offset > 1 << 27)
		return;
	rule->cfa = offset * ML_FRAME_KINDS + (ml_s32)kind;
	rule->fp_words = fp_words;
	rule->ra_words = ra_words;
}

enum ml_cfi_found ml_cfi_rule(struct ml_remote_memory *memory, ml_u32 pid, const struct ml_cfi_arch *arch,
			      const struct ml_fde *fde, ml_u64 pc, struct ml_frame_rule *rule)
{
	ml_s32 initial[COLUMNS] = { ML_CFI_CFA_OTHERWISE, 0, 0, 0, ML_CFI_NO_RULE, ML_CFI_NO_RULE };
	ml_s32 state[COLUMNS], remembered[REMEMBERED_MAX * COLUMNS];
	ml_u8 column_of[ML_CFI_REGISTERS] = { 0 };
	struct ml_cfi_machine machine = { .code_align = fde->cie.code_align,
					  .data_align = fde->cie.data_align,
					  .function = fde->start,
					  .pointer_encoding = fde->cie.pointer_encoding,
					  .fp = arch->fp,
					  .column_of = column_of,
					  .initial = initial,
					  .state = state,
					  .remembered = remembered,
					  .columns = COLUMNS,
					  .depth_max = REMEMBERED_MAX };
	enum ml_cfi_found found;

	rule->cfa = ML_FRAME_NONE;
	rule->fp_words = rule->ra_words = 0;
	if (fde->cie.is_signal_frame || fde->cie.return_register != arch->return_address)
		return ML_CFI_FOUND;
	column_of[arch->return_address] = RETURN_ADDRESS;
	column_of[arch->fp] = FRAME_POINTER;
	copy(state, initial);
	found = run(&machine, memory, pid, fde->cie.program, fde->cie.end, 0);
	if (found == ML_CFI_FOUND && machine.next != ML_CFI_END)
		found = ML_CFI_ABSENT;
	copy(initial, state);
	machine.next = 0;
	if (found == ML_CFI_FOUND)
		found = run(&machine, memory, pid, fde->program, fde->end, pc - fde->start);
	if (found == ML_CFI_FOUND)
		write_rule(arch, state, rule);
	return found == ML_CFI_UNREADABLE ? found : ML_CFI_FOUND;
}

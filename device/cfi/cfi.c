// SPDX-License-Identifier: Apache-2.0
/* The call frame instructions (DWARF 5 §6.4.2), run up to one pc, for the three registers that a rule speaks of. */
#include "cfi.h"

#include <stddef.h>

#define REMEMBERED_MAX 16
#define REGISTER_MAX 1024
#define DW_OP_BREG0 0x70
#define DW_OP_DEREF 0x06

const struct ml_cfi_arch ml_cfi_x86_64 = {
	.elf_machine = 62, .sp = 7, .fp = 6, .return_address = 16, .sp_slot = 19, .fp_slot = 4, .pc_slot = 16,
};

/* A user's address has 48 bits where no mmap() asked for more (arm64 Documentation/memory.rst). */
const struct ml_cfi_arch ml_cfi_arm64 = {
	.elf_machine = 183, .sp = 31, .fp = 29, .return_address = 30, .sp_slot = 31, .fp_slot = 29, .pc_slot = 32,
	.link_slot = 30,
	.has_return_signature = 1, .signature_mask = ~0ull << 48,
};

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

enum saved_kind { UNTOUCHED, AT_CFA, AT_FP, UNDEFINED, OTHERWISE };

/* Location of the caller's value of a register. AT_CFA: *(CFA + offset); AT_FP: *(frame pointer). */
struct saved {
	enum saved_kind kind;
	__INT64_TYPE__ offset;
};

enum cfa_kind { CFA_NONE, CFA_REGISTER, CFA_FP_DEREF, CFA_OTHERWISE };

struct row {
	enum cfa_kind cfa_kind;
	ml_u64 cfa_register;       /* DWARF number */
	__INT64_TYPE__ cfa_offset;
	struct saved return_address, fp;
};

struct machine {
	const struct ml_cfi_arch *arch;
	const struct ml_cie *cie;
	struct ml_cursor program;
	ml_u64 pc, location;
	struct row row, initial;
	ml_u32 n_remembered;
	ml_u8 is_malformed;
	ml_u8 is_past; /* the row is that of the pc */
	struct row remembered[REMEMBERED_MAX];
};

static ml_u64 read_register(struct machine *m)
{
	ml_u64 number = ml_cursor_uleb(&m->program);

	m->is_malformed |= number >= REGISTER_MAX;
	return number;
}

static void set_saved(struct machine *m, ml_u64 number, enum saved_kind kind, __INT64_TYPE__ offset)
{
	if (number == m->cie->return_register)
		m->row.return_address = (struct saved){ kind, offset };
	if (number == m->arch->fp)
		m->row.fp = (struct saved){ kind, offset };
}

static void restore(struct machine *m, ml_u64 number)
{
	if (number == m->cie->return_register)
		m->row.return_address = m->initial.return_address;
	if (number == m->arch->fp)
		m->row.fp = m->initial.fp;
}

/* Unsigned wrap where the numbers are absurd: what comes out is then no offset that a rule takes. */
static __INT64_TYPE__ factored(const struct machine *m, ml_u64 operand)
{
	return (__INT64_TYPE__)(operand * (ml_u64)m->cie->data_align);
}

static void go_to(struct machine *m, ml_u64 location)
{
	m->is_malformed |= location < m->location;
	if (location > m->pc)
		m->is_past = 1;
	else
		m->location = location;
}

static void advance(struct machine *m, ml_u64 delta)
{
	ml_u64 distance;

	if (__builtin_mul_overflow(delta, m->cie->code_align, &distance))
		m->is_malformed = 1;
	else
		go_to(m, m->location + distance);
}

static void set_cfa(struct machine *m, ml_u64 number, __INT64_TYPE__ offset)
{
	m->row.cfa_kind = CFA_REGISTER;
	m->row.cfa_register = number;
	m->row.cfa_offset = offset;
}

static void change_cfa_offset(struct machine *m, __INT64_TYPE__ offset)
{
	m->is_malformed |= m->row.cfa_kind != CFA_REGISTER;
	m->row.cfa_offset = offset;
}

static void change_cfa_register(struct machine *m, ml_u64 number)
{
	m->is_malformed |= m->row.cfa_kind != CFA_REGISTER;
	m->row.cfa_register = number;
}

static void skip_block(struct machine *m)
{
	ml_cursor_skip(&m->program, ml_cursor_uleb(&m->program));
}

/* DW_OP_breg<fp> offset; DW_OP_deref: how GCC tells the CFA of functions that align their stack. */
static void set_cfa_expression(struct machine *m)
{
	ml_u64 bytes = ml_cursor_uleb(&m->program);
	ml_u64 start = m->program.at;

	m->row.cfa_kind = CFA_OTHERWISE;
	m->is_malformed |= !bytes || bytes > m->program.end - start;
	if (m->is_malformed)
		return;
	if (ml_cursor_number(&m->program, 1) == (ml_u64)(DW_OP_BREG0 + m->arch->fp)) {
		m->row.cfa_offset = ml_cursor_sleb(&m->program);
		if (m->program.at == start + bytes - 1 && ml_cursor_number(&m->program, 1) == DW_OP_DEREF)
			m->row.cfa_kind = CFA_FP_DEREF;
	}
	if (m->program.at > start + bytes)
		m->is_malformed = 1;
	m->program.at = start + bytes;
}

/* DW_OP_breg<fp> 0: where GCC's functions that align their stack keep the frame pointer. */
static void set_saved_expression(struct machine *m)
{
	ml_u64 number = read_register(m), bytes = ml_cursor_uleb(&m->program);
	ml_u64 start = m->program.at;
	enum saved_kind kind = OTHERWISE;

	m->is_malformed |= bytes > m->program.end - start;
	if (m->is_malformed)
		return;
	if (bytes == 2 && ml_cursor_number(&m->program, 1) == (ml_u64)(DW_OP_BREG0 + m->arch->fp) &&
	    ml_cursor_number(&m->program, 1) == 0)
		kind = AT_FP;
	set_saved(m, number, kind, 0);
	m->program.at = start + bytes;
}

static void remember(struct machine *m)
{
	if (m->n_remembered < REMEMBERED_MAX)
		m->remembered[m->n_remembered++] = m->row;
	else
		m->is_malformed = 1;
}

/* The CFA too, as GCC and LLVM mean it. */
static void restore_remembered(struct machine *m)
{
	if (m->n_remembered)
		m->row = m->remembered[--m->n_remembered];
	else
		m->is_malformed = 1;
}

/* The instructions that say of one register where its caller's value is; 0: another one. */
static int run_register_rule(struct machine *m, ml_u8 opcode)
{
	ml_u64 number;

	switch (opcode) {
	case 0x05: /* DW_CFA_offset_extended */
		number = read_register(m);
		set_saved(m, number, AT_CFA, factored(m, ml_cursor_uleb(&m->program)));
		return 1;
	case 0x06: /* DW_CFA_restore_extended */
		restore(m, read_register(m));
		return 1;
	case 0x07: /* DW_CFA_undefined */
		set_saved(m, read_register(m), UNDEFINED, 0);
		return 1;
	case 0x08: /* DW_CFA_same_value */
		set_saved(m, read_register(m), UNTOUCHED, 0);
		return 1;
	case 0x09: /* DW_CFA_register */
	case 0x14: /* DW_CFA_val_offset */
	case 0x15: /* DW_CFA_val_offset_sf: sleb, of the same length */
		set_saved(m, read_register(m), OTHERWISE, 0);
		ml_cursor_uleb(&m->program);
		return 1;
	case 0x10: /* DW_CFA_expression */
		set_saved_expression(m);
		return 1;
	case 0x16: /* DW_CFA_val_expression */
		set_saved(m, read_register(m), OTHERWISE, 0);
		skip_block(m);
		return 1;
	case 0x11: /* DW_CFA_offset_extended_sf */
		number = read_register(m);
		set_saved(m, number, AT_CFA, factored(m, (ml_u64)ml_cursor_sleb(&m->program)));
		return 1;
	case 0x2f: /* DW_CFA_GNU_negative_offset_extended */
		number = read_register(m);
		set_saved(m, number, AT_CFA, factored(m, -ml_cursor_uleb(&m->program)));
		return 1;
	default:
		return 0;
	}
}

/* The instructions that define the CFA; 0: another one. */
static int run_cfa_rule(struct machine *m, ml_u8 opcode)
{
	ml_u64 number;

	switch (opcode) {
	case 0x0c: /* DW_CFA_def_cfa */
		number = read_register(m);
		set_cfa(m, number, (__INT64_TYPE__)ml_cursor_uleb(&m->program));
		return 1;
	case 0x0d: /* DW_CFA_def_cfa_register */
		change_cfa_register(m, read_register(m));
		return 1;
	case 0x0e: /* DW_CFA_def_cfa_offset */
		change_cfa_offset(m, (__INT64_TYPE__)ml_cursor_uleb(&m->program));
		return 1;
	case 0x0f: /* DW_CFA_def_cfa_expression */
		set_cfa_expression(m);
		return 1;
	case 0x12: /* DW_CFA_def_cfa_sf */
		number = read_register(m);
		set_cfa(m, number, factored(m, (ml_u64)ml_cursor_sleb(&m->program)));
		return 1;
	case 0x13: /* DW_CFA_def_cfa_offset_sf */
		change_cfa_offset(m, factored(m, (ml_u64)ml_cursor_sleb(&m->program)));
		return 1;
	default:
		return 0;
	}
}

static void run_other(struct machine *m, ml_u8 opcode)
{
	switch (opcode) {
	case 0x00: /* DW_CFA_nop */
		break;
	case 0x01: /* DW_CFA_set_loc */
		go_to(m, ml_cfi_pointer(&m->program, m->cie->pointer_encoding));
		break;
	case 0x02: /* DW_CFA_advance_loc1, 2, 4 */
	case 0x03:
	case 0x04:
		advance(m, ml_cursor_number(&m->program, 1u << (opcode - 2)));
		break;
	case 0x0a: /* DW_CFA_remember_state */
		remember(m);
		break;
	case 0x0b: /* DW_CFA_restore_state */
		restore_remembered(m);
		break;
	case 0x1d: /* DW_CFA_MIPS_advance_loc8 */
		advance(m, ml_cursor_number(&m->program, 8));
		break;
	case 0x2d: /* DW_CFA_AARCH64_negate_ra_state: the address is the same, signed or not */
		m->is_malformed |= !m->arch->has_return_signature;
		break;
	case 0x2e: /* DW_CFA_GNU_args_size: matters to exception handlers only */
		ml_cursor_uleb(&m->program);
		break;
	default:
		m->is_malformed = 1;
	}
}

static void run_instruction(struct machine *m)
{
	ml_u8 opcode = (ml_u8)ml_cursor_number(&m->program, 1);
	ml_u8 low = opcode & 0x3f;

	switch (opcode >> 6) {
	case 1: /* DW_CFA_advance_loc */
		advance(m, low);
		break;
	case 2: /* DW_CFA_offset */
		set_saved(m, low, AT_CFA, factored(m, ml_cursor_uleb(&m->program)));
		break;
	case 3: /* DW_CFA_restore */
		restore(m, low);
		break;
	default:
		if (!run_register_rule(m, low) && !run_cfa_rule(m, low))
			run_other(m, low);
	}
}

/* Runs a program to its end, or until its rows lie behind the pc. */
static enum ml_cfi_found run(struct machine *m, struct ml_remote_memory *memory, ml_u32 pid, ml_u64 start, ml_u64 end)
{
	if (end - start > ML_CFI_PROGRAM_BYTES_MAX)
		return ML_CFI_ABSENT;
	ml_cursor_open(&m->program, memory, pid, start, end);
	while (m->program.at < end && !m->is_past && !m->is_malformed && ml_cursor_is_good(&m->program))
		run_instruction(m);
	if (m->program.is_unreadable)
		return ML_CFI_UNREADABLE;
	return m->program.is_overrun || m->is_malformed ? ML_CFI_ABSENT : ML_CFI_FOUND;
}

/* Words below the CFA; 0 where a rule cannot say it. */
static ml_u16 words_below(const struct saved *saved)
{
	ml_u64 bytes = -(ml_u64)saved->offset;

	if (saved->kind != AT_CFA || bytes % 8 || bytes / 8 >= ML_FRAME_FP_AT_FP)
		return 0;
	return (ml_u16)(bytes / 8);
}

static void write_rule(const struct machine *m, struct ml_frame_rule *rule)
{
	const struct row *row = &m->row;
	ml_u16 ra_words = words_below(&row->return_address);
	ml_u16 fp_words = row->fp.kind == AT_FP ? ML_FRAME_FP_AT_FP : words_below(&row->fp);
	enum ml_frame_kind kind = ML_FRAME_NONE;

	if (row->return_address.kind == UNDEFINED) {
		rule->cfa = ML_FRAME_END;
		return;
	}
	if (row->cfa_kind == CFA_FP_DEREF)
		kind = ML_FRAME_FP_DEREF;
	else if (row->cfa_kind == CFA_REGISTER && row->cfa_register == m->arch->sp)
		kind = ML_FRAME_SP;
	else if (row->cfa_kind == CFA_REGISTER && row->cfa_register == m->arch->fp)
		kind = ML_FRAME_FP;
	if (kind == ML_FRAME_NONE || !ra_words || (kind == ML_FRAME_SP && fp_words == ML_FRAME_FP_AT_FP) || (!fp_words && row->fp.kind != UNTOUCHED) ||
	    row->cfa_offset < -(1 << 27) || row->cfa_offset > 1 << 27)
		return;
	rule->cfa = (ml_s32)row->cfa_offset * ML_FRAME_KINDS + (ml_s32)kind;
	rule->fp_words = fp_words;
	rule->ra_words = ra_words;
}

enum ml_cfi_found ml_cfi_rule(struct ml_remote_memory *memory, ml_u32 pid, const struct ml_cfi_arch *arch,
			      const struct ml_fde *fde, ml_u64 pc, struct ml_frame_rule *rule)
{
	struct machine m = { .arch = arch, .cie = &fde->cie, .pc = pc, .location = fde->start };
	enum ml_cfi_found found;

	rule->cfa = ML_FRAME_NONE;
	rule->fp_words = rule->ra_words = 0;
	if (fde->cie.is_signal_frame || fde->cie.return_register != arch->return_address)
		return ML_CFI_FOUND;
	found = run(&m, memory, pid, fde->cie.program, fde->cie.end);
	if (found == ML_CFI_FOUND && (m.is_past || m.location != fde->start))
		found = ML_CFI_ABSENT;
	m.initial = m.row;
	if (found == ML_CFI_FOUND)
		found = run(&m, memory, pid, fde->program, fde->end);
	if (found == ML_CFI_FOUND)
		write_rule(&m, rule);
	return found == ML_CFI_UNREADABLE ? found : ML_CFI_FOUND;
}

// SPDX-License-Identifier: Apache-2.0
/* Sources: Linux arch/arm64/include/uapi/asm/sigcontext.h, arch/arm64/kernel/signal.c and vdso/sigreturn.S; AAPCS64 §6. */
#ifdef __aarch64__
#include <elf.h>
#include <string.h>
#include <sys/syscall.h>

#include "agent/ptrace/state.h"

#define PSTATE_BTYPE (3ull << 10) /* set after an indirect branch, which an injected call is not */
#define NT_ARM_GCS 0x410
#define FPSIMD_MAGIC 0x46508001u
#define FPSIMD_BYTES 528

const ml_u8 ml_ptrace_trampoline_bytes[] = { 0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4 }; /* mov x8, #139; svc #0 */
const size_t ml_ptrace_n_trampoline_bytes = sizeof(ml_ptrace_trampoline_bytes);
const ml_u8 ml_ptrace_keeper_bytes[] = { 0 };
const size_t ml_ptrace_n_keeper_bytes = 0; /* x8 has the number of the call, so that x0 keeps the result */

/* struct rt_sigframe: siginfo, which rt_sigreturn does not read, then struct ucontext. */
struct frame {
	ml_u8 information[128];
	ml_u64 uc_flags, uc_link;
	struct {
		ml_u64 sp;
		ml_s32 flags;
		ml_u64 bytes;
	} alternate_stack;
	ml_u64 signal_mask;
	ml_u8 padding[120 + 8]; /* as if there were 1024 signals; aligned to 16 */
	ml_u64 fault_address, x[31], sp, pc, pstate;
	ml_u64 alignment;
	struct {
		ml_u32 magic, bytes, fpsr, fpcr;
		ml_u8 v[512];
		ml_u64 end[2];
		ml_u8 rest[4096 - FPSIMD_BYTES - 16];
	} records;
};

#define NO_SUCH_STACK 0x7f /* invalid: the thread's own alternate stack stays */

/*
 * Uses the SVE set only for a thread that uses SVE now: writing that set would make the kernel keep it for the thread from
 * then on.
 */
int ml_ptrace_vector_note(pid_t tid)
{
	struct {
		ml_u32 bytes, max_bytes;
		ml_u16 vl, max_vl, flags, reserved;
	} header; /* struct user_sve_header */

	if (ml_ptrace_read_set(tid, NT_ARM_SVE, &header, sizeof(header)) == sizeof(header) && header.flags & 1)
		return NT_ARM_SVE;
	return NT_PRFPREG;
}

struct ml_ptrace_frame ml_ptrace_frame_of(const ml_ptrace_registers *registers)
{
	return (struct ml_ptrace_frame){ registers->pc, registers->sp, registers->regs[29], registers->regs[30] };
}

/*
 * Fills in the part of the vectors that most code uses. The tracer restores the rest of SVE registers, which are lost only if
 * it is killed within the call.
 */
static void fill_vectors(const struct ml_ptrace_state *state, struct frame *frame)
{
	if (state->vector_note != NT_PRFPREG)
		return;
	frame->records.magic = FPSIMD_MAGIC;
	frame->records.bytes = FPSIMD_BYTES;
	memcpy(frame->records.v, state->vectors, 512); /* struct user_fpsimd_state: vregs, fpsr, fpcr */
	memcpy(&frame->records.fpsr, state->vectors + 512, 8);
}

size_t ml_ptrace_call_frame(const struct ml_ptrace_state *state, const struct ml_ptrace_call *call, ml_u8 *bytes,
			    struct ml_ptrace_entry *entry)
{
	ml_ptrace_registers *registers = &entry->registers;
	struct frame *frame = (struct frame *)bytes;
	ml_u64 at = (call->stack - sizeof(*frame)) & ~15ull;

	memset(frame, 0, sizeof(*frame));
	frame->alternate_stack.flags = NO_SUCH_STACK;
	frame->signal_mask = state->signal_mask;
	memcpy(frame->x, state->registers.regs, sizeof(frame->x));
	frame->sp = state->registers.sp;
	frame->pc = state->registers.pc;
	frame->pstate = state->registers.pstate;
	fill_vectors(state, frame);
	entry->address = entry->frame_address = at;
	*registers = state->registers;
	registers->pc = call->function;
	registers->sp = at;
	registers->pstate &= ~PSTATE_BTYPE;
	for (int i = 0; i < ML_CALL_ARGUMENTS; i++)
		registers->regs[i] = call->arguments[i];
	registers->regs[29] = 0; /* the end of the chain of frames */
	registers->regs[30] = call->code.trampoline;
	return sizeof(*frame);
}

bool ml_ptrace_is_return(pid_t tid, const ml_ptrace_registers *registers, ml_u64 frame_address)
{
	int number = -1;

	return registers->sp == frame_address &&
	       ml_ptrace_read_set(tid, NT_ARM_SYSTEM_CALL, &number, sizeof(number)) == sizeof(number) &&
	       number == SYS_rt_sigreturn;
}

ml_u64 ml_ptrace_result(const ml_ptrace_registers *registers)
{
	return registers->regs[0];
}

int ml_ptrace_skip_system_call(pid_t tid, ml_ptrace_registers *registers, ml_u64 trampoline)
{
	int none = -1;

	registers->pc = trampoline; /* first: until the system call is skipped, it reads all from its frame */
	if (ml_ptrace_write_set(tid, NT_PRSTATUS, registers, sizeof(*registers)))
		return -1;
	return ml_ptrace_write_set(tid, NT_ARM_SYSTEM_CALL, &none, sizeof(none));
}

struct ml_ptrace_system_call ml_ptrace_system_call_of(const ml_ptrace_registers *registers)
{
	const unsigned long long *x = registers->regs;

	return (struct ml_ptrace_system_call){ x[8], x[0], registers->pc - 4, { x[0], x[1], x[2], x[3] } };
}

void ml_ptrace_call_again(ml_ptrace_registers *registers, const struct ml_ptrace_system_call *call)
{
	memcpy(registers->regs, call->arguments, sizeof(call->arguments));
	registers->regs[8] = call->number;
	registers->pc = call->address;
}

ml_u64 ml_ptrace_thread_pointer(pid_t tid, const ml_ptrace_registers *registers)
{
	ml_u64 pointers[2] = { 0 }; /* the second with SME */

	(void)registers;
	return ml_ptrace_read_set(tid, NT_ARM_TLS, pointers, sizeof(pointers)) > 0 ? pointers[0] : 0;
}

bool ml_ptrace_has_shadow_stack(pid_t tid)
{
	ml_u64 words[3] = { 0 }; /* struct user_gcs: features_enabled, features_locked, gcspr_el0 */

	return ml_ptrace_read_set(tid, NT_ARM_GCS, words, sizeof(words)) > 0 && words[0];
}

_Static_assert(__builtin_offsetof(struct frame, fault_address) == 128 + 176, "struct ucontext of arm64");
_Static_assert(__builtin_offsetof(struct frame, records) % 16 == 0, "the records are aligned to 16");
#endif

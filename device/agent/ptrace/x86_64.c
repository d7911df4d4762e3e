// SPDX-License-Identifier: Apache-2.0
/* Sources: Linux arch/x86/include/uapi/asm/sigcontext.h, arch/x86/kernel/signal{,_64}.c; psABI x86-64 §3.2. */
#ifdef __x86_64__
#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>

#include "agent/ptrace/state.h"

#define FLAGS_CLEAR 0x40500ull /* alignment check, direction, trap: clear at a function's entry */
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516
#define NT_X86_SHSTK 0x204

const ml_u8 ml_ptrace_trampoline_bytes[] = { 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05 }; /* mov $15, %rax; syscall */
const size_t ml_ptrace_n_trampoline_bytes = sizeof(ml_ptrace_trampoline_bytes);
/* mov %rax, (%rbx); pop %rbx; ret: the end of many functions */
const ml_u8 ml_ptrace_keeper_bytes[] = { 0x48, 0x89, 0x03, 0x5b, 0xc3 };
const size_t ml_ptrace_n_keeper_bytes = sizeof(ml_ptrace_keeper_bytes);

/* struct rt_sigframe: return address, struct ucontext, then siginfo, which rt_sigreturn does not read. */
struct context {
	ml_u64 r8, r9, r10, r11, r12, r13, r14, r15, di, si, bp, bx, dx, ax, cx, sp, ip, flags;
	ml_u16 cs, gs, fs, ss;
	ml_u64 error, trap, old_mask, cr2, vectors;
	ml_u64 reserved[8];
};

struct frame {
	ml_u64 return_address;
	ml_u64 uc_flags, uc_link;
	struct {
		ml_u64 sp;
		ml_s32 flags;
		ml_u64 bytes;
	} alternate_stack;
	struct context context;
	ml_u64 signal_mask;
	ml_u8 information[128];
};

#define UC_FLAGS 7 /* UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS */
#define NO_SUCH_STACK 0x7f /* invalid: the thread's own alternate stack stays */

/* struct _fpx_sw_bytes, at 464 of the area: makes the kernel read more than the first 512 bytes. */
struct vector_words {
	ml_u32 magic, extended_bytes;
	ml_u64 features;
	ml_u32 bytes, padding[7];
};

#define VECTOR_WORDS_AT 464
#define FEATURES_AT 512 /* xstate_bv */
#define MAGIC_1 0x46505853u
#define MAGIC_2 0x46505845u

int ml_ptrace_vector_note(pid_t tid)
{
	ml_u8 probe[64];

	return ml_ptrace_read_set(tid, NT_X86_XSTATE, probe, sizeof(probe)) > 0 ? NT_X86_XSTATE : NT_PRFPREG;
}

struct ml_ptrace_frame ml_ptrace_frame_of(const ml_ptrace_registers *registers)
{
	return (struct ml_ptrace_frame){ registers->rip, registers->rsp, registers->rbp, 0 };
}

/* Without a tracer the kernel does not restart a wait. Restarts it here, or ends it as a signal would. */
static void settle_system_call(ml_ptrace_registers *registers)
{
	long result = (long)registers->rax;

	if ((long)registers->orig_rax < 0)
		return;
	if (result == -ERESTARTSYS || result == -ERESTARTNOINTR || result == -ERESTARTNOHAND) {
		registers->rax = registers->orig_rax;
		registers->rip -= 2;
	} else if (result == -ERESTART_RESTARTBLOCK) {
		registers->rax = (unsigned long)-EINTR;
	}
}

static void fill_context(struct context *context, ml_ptrace_registers registers, ml_u64 vectors)
{
	settle_system_call(&registers);
	/* clang-format off */
	*context = (struct context){
		.r8 = registers.r8, .r9 = registers.r9, .r10 = registers.r10, .r11 = registers.r11,
		.r12 = registers.r12, .r13 = registers.r13, .r14 = registers.r14, .r15 = registers.r15,
		.di = registers.rdi, .si = registers.rsi, .bp = registers.rbp, .bx = registers.rbx,
		.dx = registers.rdx, .ax = registers.rax, .cx = registers.rcx, .sp = registers.rsp,
		.ip = registers.rip, .flags = registers.eflags, .cs = (ml_u16)registers.cs, .ss = (ml_u16)registers.ss,
		.vectors = vectors,
	};
	/* clang-format on */
}

/* The kernel's register set has the layout of a signal frame's area, except for the words that belong to the tracer. */
static size_t fill_vectors(const struct ml_ptrace_state *state, ml_u8 *area)
{
	struct vector_words words = { .magic = MAGIC_1,
				      .extended_bytes = state->vector_bytes + 4,
				      .bytes = state->vector_bytes };
	ml_u32 magic = MAGIC_2;

	memcpy(area, state->vectors, state->vector_bytes);
	if (state->vector_note != NT_X86_XSTATE || state->vector_bytes < FEATURES_AT + sizeof(words.features))
		return state->vector_bytes;
	memcpy(&words.features, state->vectors + VECTOR_WORDS_AT, sizeof(words.features)); /* XCR0: all features */
	memcpy(area + VECTOR_WORDS_AT, &words, sizeof(words));
	memcpy(area + state->vector_bytes, &magic, sizeof(magic));
	return state->vector_bytes + sizeof(magic);
}

static ml_ptrace_registers entry_registers(const struct ml_ptrace_state *state, const struct ml_ptrace_call *call)
{
	ml_ptrace_registers registers = state->registers;

	registers.rip = call->function;
	registers.rdi = call->arguments[0];
	registers.rsi = call->arguments[1];
	registers.rdx = call->arguments[2];
	registers.rax = 0;
	registers.orig_rax = (unsigned long)-1; /* no system call to be restarted */
	registers.eflags &= ~FLAGS_CLEAR;
	return registers;
}

/*
 * If code that keeps the result is known, the function returns to it first. That code writes the result to a word below the
 * frame, to which rbx points, and pops it.
 */
size_t ml_ptrace_call_frame(const struct ml_ptrace_state *state, const struct ml_ptrace_call *call, ml_u8 *frame,
			    struct ml_ptrace_entry *entry)
{
	ml_u64 room = (state->vector_bytes + 4 + 63) & ~63ull;
	ml_u64 vectors = (call->stack - room) & ~63ull;
	ml_u64 at = ((vectors - sizeof(struct frame)) & ~15ull) - 8; /* psABI: (%rsp + 8) is a multiple of 16 at entry */
	ml_u64 below[2] = { call->code.keeps_result, 0 };
	size_t n_below = call->code.keeps_result ? sizeof(below) : 0;
	struct frame head = { .return_address = call->code.trampoline,
			      .uc_flags = UC_FLAGS,
			      .alternate_stack.flags = NO_SUCH_STACK,
			      .signal_mask = state->signal_mask };

	fill_context(&head.context, state->registers, vectors);
	memcpy(frame, below, n_below);
	memcpy(frame + n_below, &head, sizeof(head));
	entry->frame_address = at;
	entry->address = at - n_below;
	entry->registers = entry_registers(state, call);
	entry->registers.rsp = entry->address;
	entry->registers.rbx = at - 8;
	return n_below + (size_t)(vectors - at) + fill_vectors(state, frame + n_below + (vectors - at));
}

bool ml_ptrace_is_return(pid_t tid, const ml_ptrace_registers *registers, ml_u64 frame_address)
{
	(void)tid;
	return registers->orig_rax == SYS_rt_sigreturn && registers->rsp == frame_address + 8;
}

ml_u64 ml_ptrace_result(const ml_ptrace_registers *registers)
{
	return registers->rbx;
}

int ml_ptrace_skip_system_call(pid_t tid, ml_ptrace_registers *registers, ml_u64 trampoline)
{
	registers->orig_rax = (unsigned long)-1;
	registers->rip = trampoline;
	return ml_ptrace_write_set(tid, NT_PRSTATUS, registers, sizeof(*registers));
}

struct ml_ptrace_system_call ml_ptrace_system_call_of(const ml_ptrace_registers *registers)
{
	return (struct ml_ptrace_system_call){
		registers->orig_rax,
		registers->rax,
		registers->rip - 2,
		{ registers->rdi, registers->rsi, registers->rdx, registers->r10 },
	};
}

void ml_ptrace_call_again(ml_ptrace_registers *registers, const struct ml_ptrace_system_call *call)
{
	registers->rdi = call->arguments[0];
	registers->rsi = call->arguments[1];
	registers->rdx = call->arguments[2];
	registers->r10 = call->arguments[3];
	registers->rax = call->number;
	registers->rip = call->address;
	registers->orig_rax = (unsigned long)-1;
}

ml_u64 ml_ptrace_thread_pointer(pid_t tid, const ml_ptrace_registers *registers)
{
	(void)tid;
	return registers->fs_base;
}

bool ml_ptrace_has_shadow_stack(pid_t tid)
{
	ml_u64 pointer = 0;

	return ml_ptrace_read_set(tid, NT_X86_SHSTK, &pointer, sizeof(pointer)) == sizeof(pointer) && pointer;
}

_Static_assert(sizeof(struct context) == 256, "struct sigcontext_64");
_Static_assert(sizeof(struct frame) == 8 + 304 + 128, "struct rt_sigframe");
#endif

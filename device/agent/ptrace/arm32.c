// SPDX-License-Identifier: Apache-2.0
/* Stubs: threads of 32-bit processes are not made to call functions (ml_inject() refuses). */
#ifdef __arm__
#include "agent/ptrace/state.h"

#pragma clang diagnostic ignored "-Wunused-parameter"

const ml_u8 ml_ptrace_trampoline_bytes[] = { 0 }, ml_ptrace_keeper_bytes[] = { 0 };
const size_t ml_ptrace_n_trampoline_bytes = 0, ml_ptrace_n_keeper_bytes = 0;

int ml_ptrace_vector_note(pid_t tid)
{
	return 0;
}

struct ml_ptrace_frame ml_ptrace_frame_of(const ml_ptrace_registers *registers)
{
	const unsigned long *r = registers->uregs;

	return (struct ml_ptrace_frame){ r[15], r[13], r[11], r[14] };
}

size_t ml_ptrace_call_frame(const struct ml_ptrace_state *state, const struct ml_ptrace_call *call, ml_u8 *frame,
			    struct ml_ptrace_entry *entry)
{
	*entry = (struct ml_ptrace_entry){ .registers = state->registers };
	return 0;
}

bool ml_ptrace_is_return(pid_t tid, const ml_ptrace_registers *registers, ml_u64 frame_address)
{
	return false;
}

ml_u64 ml_ptrace_result(const ml_ptrace_registers *registers)
{
	return registers->uregs[0];
}

int ml_ptrace_skip_system_call(pid_t tid, ml_ptrace_registers *registers, ml_u64 trampoline)
{
	return -1;
}

ml_u64 ml_ptrace_thread_pointer(pid_t tid, const ml_ptrace_registers *registers)
{
	return 0;
}

bool ml_ptrace_has_shadow_stack(pid_t tid)
{
	return false;
}
#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Finds the stack that a signal handler on the alternate stack (sigaltstack(2)) interrupted. A part of stack_key.bpf.h. */
#pragma once

#include "signal_frame.h"

#ifdef ML_OLD_KERNEL
static __always_inline bool ml_find_alternate_stack(struct ml_bpf_bounds *stack, ml_u64 sp)
{
	(void)stack, (void)sp;
	return false;
}
#else
/* The thread's alternate stack, if sp is on it. */
static __always_inline bool ml_find_alternate_stack(struct ml_bpf_bounds *stack, ml_u64 sp)
{
	ml_u64 of_task[2] = {}; /* sas_ss_sp, sas_ss_size */

	if (!options.alternate_stack ||
	    bpf_probe_read_kernel(of_task, sizeof(of_task),
				  (const void *)bpf_get_current_task_btf() + options.alternate_stack) ||
	    sp - of_task[0] >= of_task[1])
		return false;
	*stack = (struct ml_bpf_bounds){ of_task[0], of_task[0] + of_task[1] };
	return true;
}

/* Windows that are searched from the stack's end downwards: vector registers lie between it and the frame. */
#define ML_SIGNAL_WINDOWS 16
#define ML_SIGNAL_STEP (ML_WINDOW_WORDS - 2)

/* The index after that of the last uc_stack with these bounds in the window; 0 = there is none. */
__noinline ml_u32 ml_match_bounds(const struct ml_walk *walk, ml_u64 low, ml_u64 bytes)
{
	ml_u32 found = 0;

	if (!walk)
		return 0;
	for (ml_u32 i = 0; i < ML_SIGNAL_STEP; i++)
		if (walk->words[i] == low && walk->words[i + 2] == bytes)
			found = i + 1;
	return found;
}

/* The address of the outermost frame's uc_stack, which the kernel put at the end of the stack; 0 = not found. */
__noinline ml_u64 ml_find_signal_frame(ml_u64 low, ml_u64 end)
{
	struct ml_thread *thread = ml_known_thread();
	ml_u64 at = end & ~7ull;

	if (!thread)
		return 0;
	for (ml_u32 i = 0; i < ML_SIGNAL_WINDOWS; i++) {
		ml_u32 found;

		at -= 8 * ML_SIGNAL_STEP;
		if (bpf_probe_read_user(thread->walk.words, sizeof(thread->walk.words), (const void *)(at - 16)))
			continue;
		found = ml_match_bounds(&thread->walk, low, end - low);
		if (found)
			return at - 16 + 8ull * (found - 1);
	}
	return 0;
}

/* Whether the last key is that of a handler and what it has interrupted. */
static __always_inline bool ml_is_handler(const struct ml_thread *thread)
{
	return !thread->is_recalled && ML_SP(&thread->interrupted);
}

/* Begins the walk of the interrupted stack, unless the frame cannot be read, or leads back to this stack. */
static __always_inline void ml_begin_interrupted(struct ml_thread *thread, ml_u64 frame)
{
	struct ml_regs *regs = &thread->interrupted;
	ml_u64 sp = 0, pc = 0, fp = 0;
	struct ml_bpf_bounds back;

	if (bpf_probe_read_user(&sp, sizeof(sp), (const void *)(frame + 8 * ML_SIGNAL_SP)) ||
	    bpf_probe_read_user(&pc, sizeof(pc), (const void *)(frame + 8 * ML_SIGNAL_PC)) ||
	    bpf_probe_read_user(&fp, sizeof(fp), (const void *)(frame + 8 * ML_SIGNAL_FP)) || sp & 7 ||
	    ml_find_alternate_stack(&back, sp))
		return;
	ML_SP(regs) = sp;
	ML_IP(regs) = pc + 1; /* its rule is that of pc */
	ML_FP(regs) = fp;
	thread->walk.sp = sp;
	thread->walk.fp = fp;
	thread->walk.return_address = pc + 1;
	thread->walk.limit = sp + options.walk_bytes;
	thread->walk.key = ml_mix(thread->walk.key, pc + 1);
}
#endif

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The probes, each one line over the recorder. A function's rule decides which program serves it
 * (agent/bpf/programs.c).
 */
#include "pairs.bpf.h"
#include "regions.bpf.h"

#ifndef ML_OLD_KERNEL
/* The probe's cookie: kernel commit 82e6b1eee6a8, in v5.15. */
static __always_inline ml_u32 ml_function(struct ml_regs *regs)
{
	return (ml_u32)bpf_get_attach_cookie(regs) & (ML_FN_MAX - 1);
}

/* malloc's shape: most calls of a heap. */
SEC("uprobe") int acquire_1(struct ml_regs *regs)
{
	ml_u32 function = ml_function(regs);

	return ml_enter(regs, function, ml_rule_of(function)->nesting, ML_ARG1(regs), 0, false);
}

/* For all other rules of one block. */
SEC("uprobe") int acquire_block(struct ml_regs *regs)
{
	ml_u32 function = ml_function(regs);

	return ml_enter_by_rule(regs, function, ml_rule_of(function));
}

ML_PROBE("uprobe", release_1, ml_release(regs, ml_function(regs), ML_ARG1(regs)))

/* For all other rules. */
ML_PROBE("uprobe", rule_acquire, ml_acquire(regs, ml_function(regs)))
ML_PROBE("uretprobe", rule_return, ml_acquired(regs, ML_PAIR_HANDLES, false))
ML_PROBE("uprobe", rule_exit, ml_acquired(regs, ML_PAIR_HANDLES, true))

/* For calls that return more handles. */
ML_PROBE("uretprobe", message_return, ml_acquired(regs, ML_PAIR_RECEIVED, false))
ML_PROBE("uprobe", message_exit, ml_acquired(regs, ML_PAIR_RECEIVED, true))

ML_PROBE("uprobe", block_exit, ml_return(regs, true))
ML_PROBE("uprobe", rule_release, ml_pair_release(regs, ml_function(regs)))
#else
/*
 * Kernels without cookies: one program for each function of the heap. The rule is read-only data at a constant offset,
 * whose content the verifier knows (kernel commit a23740ec43ba, in v5.5), so it removes the other branches.
 */
#define ML_FUNCTION(number)                                               \
	SEC("uprobe") int function_##number(struct ml_regs *regs)         \
	{                                                                 \
		const volatile struct ml_pair *rule = ml_rule_of(number); \
                                                                          \
		if (rule->is_release)                                     \
			return ml_release(regs, number, ML_ARG1(regs));   \
		return ml_enter_by_rule(regs, number, rule);              \
	}

ML_FUNCTION(1)
ML_FUNCTION(2)
ML_FUNCTION(3)
ML_FUNCTION(4)
ML_FUNCTION(5)
ML_FUNCTION(6)
ML_FUNCTION(7)
ML_FUNCTION(8)
ML_FUNCTION(9)
ML_FUNCTION(10)
ML_FUNCTION(11)
ML_FUNCTION(12)
ML_FUNCTION(13)
#endif

/* The return of calls that make one block; the pending call has the function. */
ML_PROBE("uretprobe", block_return, ml_return(regs, false))

/* For the overhead benchmark: probes without any work. */
ML_PROBE("uprobe", empty_entry, 0)
ML_PROBE("uretprobe", empty_return, 0)

ML_TRACEPOINT("raw_tracepoint/sched_process_exit", process_exit, ml_thread_exit())
ML_TRACEPOINT("raw_tracepoint/sched_process_exec", process_exec, ml_process_exec(event))
ML_TRACEPOINT("tracepoint/task/task_newtask", process_fork, ml_process_fork(event))
ML_TRACEPOINT("tracepoint/syscalls/sys_enter_munmap", code_unmapped, ml_code_unmapped(event))
ML_TRACEPOINT("tracepoint/syscalls/sys_enter_mmap", code_mapped, ml_code_mapped(event))
ML_TRACEPOINT("tracepoint/syscalls/sys_enter_execve", exec_begins, ml_exec_begins())
ML_TRACEPOINT("tracepoint/syscalls/sys_enter_execveat", execat_begins, ml_exec_begins())

#ifndef ML_OLD_KERNEL
/* Also of munmap, mremap, shmat, shmdt and brk. */
ML_TRACEPOINT("tracepoint/syscalls/sys_exit_mmap", region_changed, ml_region_changed(event))
#endif

char LICENSE[] SEC("license") = "Dual BSD/GPL";

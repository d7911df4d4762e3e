// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* snoop: one program for the entries of all functions and one for their returns. */
#include "snoop_calls.bpf.h"

SEC("uprobe") int call_entry(struct ml_regs *regs)
{
	return ml_call_entry(regs);
}

SEC("uretprobe") int call_exit(struct ml_regs *regs)
{
	return ml_call_exit(regs);
}

SEC("uprobe") int call_exit_at(struct ml_regs *regs)
{
	return ml_call_exit_at(regs);
}

/* On a function of the agent's own, which another thread of it calls: does the kernel's filter by process work? */
SEC("uprobe") int self_test(struct ml_regs *regs)
{
	ml_u32 zero = 0;
	struct ml_snoop_control *now = bpf_map_lookup_elem(&control, &zero);

	(void)regs;
	if (now)
		ml_add(&now->n_self_test, 1);
	return 0;
}

SEC("raw_tracepoint/sched_process_exit") int thread_exit(void *context)
{
	(void)context;
	return ml_thread_end();
}

SEC("raw_tracepoint/sched_process_exec") int process_exec(void *context)
{
	(void)context;
	return ml_thread_end();
}

SEC("tracepoint/task/task_newtask") int process_fork(void *event)
{
	return ml_follow_fork(event);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

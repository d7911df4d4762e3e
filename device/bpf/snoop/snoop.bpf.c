// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* snoop: one program for the entries of all functions and one for their returns. */
#include "bpf/snoop/calls.bpf.h"

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

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* snoop: one program for the entries of all functions and one for their returns. */
#include "bpf/snoop/calls.bpf.h"

ML_PROBE("uprobe", call_entry, ml_call_entry(regs))
ML_PROBE("uretprobe", call_exit, ml_call_exit(regs))
ML_PROBE("uprobe", call_exit_at, ml_call_exit_at(regs))
ML_TRACEPOINT("raw_tracepoint/sched_process_exit", thread_exit, ml_thread_end((ml_u32)bpf_get_current_pid_tgid()))
ML_TRACEPOINT("raw_tracepoint/sched_process_exec", process_exec,
	      ml_thread_end((ml_u32)((const ml_u64 *)event)[1])) /* old tid */
ML_TRACEPOINT("tracepoint/task/task_newtask", process_fork, ml_follow_fork(event))

char LICENSE[] SEC("license") = "Dual BSD/GPL";

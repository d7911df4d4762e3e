/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The processes whose allocations count: all, one, or those of a command and of all that it starts. */
#pragma once

#include "bpf/kernel/maps.bpf.h"

#define ML_CLONE_THREAD 0x10000 /* include/uapi/linux/sched.h */

/* One entry if no command is started. */
ML_MAP(HASH, tree, ml_u32, ml_u32, 1, 0); /* tgid */

/* Options are constants at load time, so the verifier removes the branches of disabled features. */
static __always_inline int ml_is_of_target(ml_u32 pid)
{
	if (options.is_tree)
		return bpf_map_lookup_elem(&tree, &pid) != 0;
	return !options.pid || pid == options.pid;
}

/* event: task_newtask, in the parent, before the child runs. */
static __always_inline int ml_follow_fork(const char *event)
{
	ml_u32 parent = (ml_u32)(bpf_get_current_pid_tgid() >> 32), child = 0, one = 1;
	ml_u64 flags = 0;

	if (bpf_probe_read_kernel(&flags, sizeof(flags), event + options.fork_flags) || flags & ML_CLONE_THREAD ||
	    bpf_probe_read_kernel(&child, sizeof(child), event + options.fork_pid))
		return 0;
	if (!bpf_map_lookup_elem(&tree, &parent))
		bpf_map_delete_elem(&tree, &child); /* an entry of this number is an ended process's */
	else if (bpf_map_update_elem(&tree, &child, &one, BPF_ANY))
		ml_count(ML_LOST_PROGRAMS);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* One link for many uprobes of a file (BPF_TRACE_UPROBE_MULTI): the kernel waits for one grace period where perf events need one each. */
#ifndef MEMLEAK_UPROBE_MULTI_H
#define MEMLEAK_UPROBE_MULTI_H

#include <stdbool.h>

#include "wire.h"

/* n: number of offsets and of cookies. pid -1: every process. */
struct ml_uprobe_multi {
	const char *path;
	const ml_u64 *offsets, *cookies;
	ml_u32 n;
	int pid;
	bool at_return;
};

/* The program must be loaded for BPF_TRACE_UPROBE_MULTI. Returns the link's descriptor, or -1 with errno set and no probe placed. */
int ml_uprobe_multi_link(int program, const struct ml_uprobe_multi *probes);

/*
 * Whether this kernel has such links (Linux 6.6) and they see all threads of a process. Before 6.10 their filter lets the first thread
 * pass only (kernel commit 46ba0e49b642), so a function of the agent is tried, once.
 */
bool ml_uprobe_multi_works(void);

#endif

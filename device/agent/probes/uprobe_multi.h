/* SPDX-License-Identifier: Apache-2.0 */
/* One link for many uprobes of a file (BPF_TRACE_UPROBE_MULTI): the kernel waits for one grace period where perf events need one each. */
#ifndef MEMLEAK_UPROBE_MULTI_H
#define MEMLEAK_UPROBE_MULTI_H

#include <stdbool.h>

#include "wire.h"

/* n: how many of offsets and cookies there are. pid: -1 = every process. */
struct ml_uprobe_multi {
	const char *path;
	const ml_u64 *offsets, *cookies;
	ml_u32 n;
	int pid;
	bool at_return;
};

/* The program has to be loaded for BPF_TRACE_UPROBE_MULTI. The link's file, or -1 with errno set: none of them is placed. */
int ml_uprobe_multi_link(int program, const struct ml_uprobe_multi *probes);

/*
 * Does this kernel have such links (Linux 6.6), and do they see all threads of a process? Before 6.10 their filter lets the first
 * thread pass only (kernel commit 46ba0e49b642): so it is tried on a function of our own. Answered once.
 */
bool ml_uprobe_multi_works(void);

#endif

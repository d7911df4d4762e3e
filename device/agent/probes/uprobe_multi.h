/* SPDX-License-Identifier: Apache-2.0 */
/* One link for many uprobes of a file (BPF_TRACE_UPROBE_MULTI): the kernel waits for one grace period where perf events need one each. */
#pragma once

#include <bpf/libbpf.h>

#include "agent/probes/spared.h"
#include "wire.h"

/* n: number of offsets and of cookies. pid -1: every process. */
struct ml_uprobe_multi {
	const char *path;
	const ml_u64 *offsets, *cookies;
	ml_u32 n;
	int pid;
	bool at_return;
};

/* Calls of one process. LENT_MEMORY: by its children of vfork() and CLONE_VM. LATE: by threads that outlive the first one. */
enum ml_uprobe_multi_calls { ML_CALLS_OF_THREADS, ML_CALLS_IN_LENT_MEMORY, ML_CALLS_LATE, ML_CALLS_KINDS };

/*
 * Whether this kernel has such links (Linux 6.6) and those on one process see the calls of all its threads, and these. Before 6.10 the
 * filter lets the first thread pass only (kernel commit 46ba0e49b642), later that thread group only, so a function of the agent is
 * tried, once. Perf events compare address spaces, so those of one process end with its first thread.
 */
bool ml_uprobe_multi_sees(enum ml_uprobe_multi_calls calls);

/* Placed probes and attached tracepoints. All zero: none. */
struct ml_links {
	struct ml_link {
		struct bpf_link *link; /* NULL: `file` is a link for many probes */
		int file;
	} *all;
	size_t n, room;
	struct ml_spared spared; /* by probes on all processes */
};

/* Takes a link of libbpf, which may be NULL. 0, or an errno: its own for NULL. */
int ml_links_keep(struct ml_links *links, struct bpf_link *link);

/*
 * Places all probes whose errors[] is 0, by one link for many if has_multi, else by a perf event each. Sets the errno of each that the
 * kernel refuses.
 */
void ml_links_place(struct ml_links *links, struct bpf_program *program, const struct ml_uprobe_multi *probes, bool has_multi,
		    ml_s32 *errors);

/* Closes all links at once: the kernel waits for a grace period at each, some 100 ms. */
void ml_links_close(struct ml_links *links);

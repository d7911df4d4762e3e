/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The BPF tracer of any functions (`snoop`). The configuration comes in; CALLS, CALL_STATISTICS and PROBE_RESULTS blocks go out
 * (session.c). Here: the loaded programs, maps and links.
 */
#pragma once

#include <bpf/libbpf.h>

#include "agent/probes/uprobe_multi.h"
#include "agent/snoop/config.h"

struct ml_snoop {
	struct bpf_object *object;
	struct ring_buffer *calls, *stacks; /* no stacks: NULL */
	struct ml_snoop_statistics *statistics; /* one for each function, shared with the programs */
	size_t statistics_bytes;
	struct ml_snoop_control *control; /* shared with the programs */
	ml_u32 n_functions, only;
	bool has_multi, has_cookies, is_old; /* is_old: for kernels before 5.12 */
	int n_cpus;
	struct ml_links links;
};

/*
 * Loads the programs for the kinds of links that this kernel has. only: the one process to trace; 0: those that are added.
 * 0, or -1 after an ERROR block.
 */
int ml_snoop_load(struct ml_snoop *snoop, const struct ml_snoop_config *config, ml_u32 only, ring_buffer_sample_fn on_call,
		  ring_buffer_sample_fn on_stack, void *context);

/*
 * Places all probes; command_pid is the process of the command's own. Each result goes into a PROBE_RESULTS block. Returns the number of
 * placed probes, or -1 after an ERROR block.
 */
int ml_snoop_attach(struct ml_snoop *snoop, const struct ml_snoop_config *config, int command_pid);

/* Detaches the probes and closes the object. */
void ml_snoop_close(struct ml_snoop *snoop);

/* Traces a process. */
int ml_snoop_add_process(struct ml_snoop *snoop, ml_u32 tgid);

/* Whether any traced process or child still runs. Removes ended ones. */
bool ml_snoop_has_processes(struct ml_snoop *snoop);

/* The probe at an address of a process, for kernels without cookies. */
int ml_snoop_add_address(struct ml_snoop *snoop, ml_u32 tgid, ml_u64 address, ml_u32 cookie);

/* Sum of one counter over all CPUs. */
ml_u64 ml_snoop_counter(const struct ml_snoop *snoop, ml_u32 which);

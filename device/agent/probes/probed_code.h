/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refuses code that cannot be probed: only 64-bit code of this machine can. In 32-bit arm code a 64-bit kernel refuses probes
 * (arch/arm64/kernel/probes/uprobes.c). A 32-bit kernel takes Thumb code for A32 code (arch/arm/probes/uprobes/core.c): the breakpoint
 * would lie across two instructions and kill the target.
 */
#pragma once

#include "agent/probes/spared.h"
#include "agent/protocol/config.h"

/* Whether this agent carries BPF programs. */
bool ml_probed_code_has_programs(void);

/*
 * Checks the process and the files of all probes before the first is placed. If a hook is in a function of the process, the probe moves
 * to the function's start unless the hook covers it. 0, or -1 after an ERROR block.
 */
int ml_probed_code_settle(struct ml_config *config);

/*
 * Finds the other processes that a session of all processes, or of children, leaves out (spared.h). The last step before the probes are
 * placed: a process found later is not spared. 0, or -1 after an ERROR block.
 */
int ml_probed_code_spare(const struct ml_config *config, struct ml_spared *spared);

/*
 * Whether a process whose first thread has ended still has the breakpoints. When another tracer's are removed at the same place, the kernel
 * asks whose else it is by the memory of that thread, which is gone (uprobe_multi_link_filter() in kernel/trace/bpf_trace.c).
 */
bool ml_breakpoints_remain(const struct ml_config *config, int pid);

/*
 * Checks that the breakpoints of all probes are in the memory of this process, so that no session starts that can only end in an
 * empty report. 0, or -1 after an ERROR block that names the missing one.
 */
int ml_breakpoint_check(const struct ml_config *config, int pid);

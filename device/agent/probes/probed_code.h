/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refuses code that cannot be probed: only 64-bit code of this machine can. In 32-bit arm code a 64-bit kernel refuses probes
 * (arch/arm64/kernel/probes/uprobes.c). A 32-bit kernel takes Thumb code for A32 code (arch/arm/probes/uprobes/core.c): the breakpoint
 * would lie across two instructions and kill the target.
 */
#ifndef MEMLEAK_PROBED_CODE_H
#define MEMLEAK_PROBED_CODE_H

#include <stdbool.h>

#include "agent/protocol/config.h"

/* Whether this agent carries BPF programs. */
bool ml_probed_code_has_programs(void);

/*
 * Checks the process and the files of all probes before the first is placed. If a hook is in a function, the probe moves to the
 * function's start unless the hook covers it. 0, or -1 after an ERROR block.
 */
int ml_probed_code_settle(struct ml_config *config);

#endif

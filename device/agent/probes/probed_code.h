/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What probes may be placed in: 64-bit code of this machine. In 32-bit arm code a 64-bit kernel refuses them
 * (arch/arm64/kernel/probes/uprobes.c), and a 32-bit one takes Thumb code for A32 code (arch/arm/probes/uprobes/core.c):
 * the breakpoint would lie across two instructions, and the target would be killed.
 */
#ifndef MEMLEAK_PROBED_CODE_H
#define MEMLEAK_PROBED_CODE_H

#include <stdbool.h>

#include "agent/protocol/config.h"

/* This agent carries BPF programs. */
bool ml_probed_code_has_programs(void);

/*
 * Looks at the process and at the files of all probes, before the first is placed. Where somebody's hook is in a function, its
 * probe goes to its start if the hook begins behind that. 0, or -1 after an ERROR block.
 */
int ml_probed_code_settle(struct ml_config *config);

#endif

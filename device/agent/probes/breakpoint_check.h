/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_BREAKPOINT_CHECK_H
#define MEMLEAK_BREAKPOINT_CHECK_H

#include "agent/protocol/config.h"

/*
 * Checks that the breakpoints of all probes are in the memory of this process, so that no session starts that can only end in an
 * empty report. 0, or -1 after an ERROR block that names the missing one.
 */
int ml_breakpoint_check(const struct ml_config *config, int pid);

#endif

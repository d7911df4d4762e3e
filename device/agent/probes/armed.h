/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_ARMED_H
#define MEMLEAK_ARMED_H

#include "agent/protocol/config.h"

/*
 * Are the breakpoints of all probes in the memory of this process? 0, or -1 after an ERROR block that says
 * where none is: a session never starts that could only end in an empty report.
 */
int ml_armed_check(const struct ml_config *config, int pid);

#endif

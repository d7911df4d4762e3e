/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_PROCESS_NAME_H
#define MEMLEAK_PROCESS_NAME_H

#include "wire.h"

/* The kernel's name of it (/proc/PID/comm); the name is left as it is where that cannot be read. */
void ml_process_name(ml_u32 pid, char name[16]);

#endif

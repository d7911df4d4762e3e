/* SPDX-License-Identifier: Apache-2.0 */
/* `memleakd kernel`: the kernel's own memory, of the whole machine or on behalf of one process. */
#pragma once

#include "agent/protocol/config.h"

/* Returns the exit code. */
int ml_kernel_run(const struct ml_config *config);

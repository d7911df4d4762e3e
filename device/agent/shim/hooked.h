/* SPDX-License-Identifier: Apache-2.0 */
/* Reports the modules whose slots a target's shim patches. */
#ifndef MEMLEAK_PRELOAD_HOOKED_H
#define MEMLEAK_PRELOAD_HOOKED_H

#include "agent/shim/target.h"

/* Writes new rows as HOOKED blocks, and renews the agent's sign of life. -1: the host is gone. */
int ml_preload_hooked_write(struct ml_preload_target *target);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What a target's shim tells of the modules whose slots it patches. */
#ifndef MEMLEAK_PRELOAD_HOOKED_H
#define MEMLEAK_PRELOAD_HOOKED_H

#include "agent/shim/target.h"

/* Writes what is new as HOOKED blocks, and gives the shim a sign of life. -1 when the host is gone. */
int ml_preload_hooked_look(struct ml_preload_target *target);

#endif

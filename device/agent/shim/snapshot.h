/* SPDX-License-Identifier: Apache-2.0 */
/* KEYS, LIVE and STATUS blocks of all processes of the session, running and ended. */
#pragma once

#include "agent/shim/processes.h"

/* Both return 0, or -1 when the host is gone. */
int ml_preload_snapshot(const struct ml_preload_processes *processes, const struct ml_regions *regions, ml_u64 number);
int ml_preload_status(const struct ml_preload_processes *processes, const ml_u64 *agent_lost);

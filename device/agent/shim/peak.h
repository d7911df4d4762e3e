/* SPDX-License-Identifier: Apache-2.0 */
/* The high-water mark that the shim keeps in a process (preload/peak.h), as the agent reads it. */
#ifndef MEMLEAK_PRELOAD_PEAK_H
#define MEMLEAK_PRELOAD_PEAK_H

#include "agent/shim/processes.h"

/* HIGH_WATER blocks where the mark has risen since the last ones; -1: the host is gone. */
int ml_preload_peak_write(struct ml_preload_target *target);

/* The same of a process that has ended, whose books are about to be closed; the host may be gone. */
void ml_preload_peak_close(struct ml_preload_processes *processes, struct ml_preload_target *target);

/* For the nursery: the key held much of what one of the processes held at its mark. */
bool ml_preload_was_in_peak(const struct ml_preload_processes *processes, ml_u64 key);

#endif

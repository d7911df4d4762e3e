/* SPDX-License-Identifier: Apache-2.0 */
/* The end of recording in processes that go on. */
#ifndef MEMLEAK_PRELOAD_LAST_CALLS_H
#define MEMLEAK_PRELOAD_LAST_CALLS_H

#include "agent/shim/processes.h"

/*
 * Marks the session as over in all processes, and waits for calls that are being recorded, so that the last snapshot has their evidence
 * and no half-written block. `drain` empties the rings, which such a call may wait for. The wait is bounded to a second, for stopped or
 * slow processes.
 */
void ml_preload_last_calls(struct ml_preload_processes *processes, void (*drain)(void *context), void *context);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The end of recording in processes that go on. */
#ifndef MEMLEAK_PRELOAD_LAST_CALLS_H
#define MEMLEAK_PRELOAD_LAST_CALLS_H

#include "agent/shim/processes.h"

/*
 * Tells all processes that the session is over, and waits for the calls that were on their way to the books: what the
 * last snapshot then shows has its evidence, and none is half in it. `drain` reads the rings, for which such a call may
 * be waiting. A process that stands still, or is slow, is waited for a second.
 */
void ml_preload_last_calls(struct ml_preload_processes *processes, void (*drain)(void *context), void *context);

#endif

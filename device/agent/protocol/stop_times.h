/* SPDX-License-Identifier: Apache-2.0 */
/* Times for which the agent stopped threads of the target. */
#pragma once

#include "wire.h"

#define ML_STOP_TIMES_MAX 64

struct ml_stop_times {
	ml_u32 n, n_dropped; /* if full, the longest stops are kept */
	struct ml_stop stops[ML_STOP_TIMES_MAX];
};

/* Adds a stop that ends now. ml_stop_times_write() fills in pid and moment. */
void ml_stop_times_add(struct ml_stop_times *times, enum ml_stopped stopped, ml_u64 duration_ns, ml_u32 n_threads);

void ml_stop_times_append(struct ml_stop_times *times, const struct ml_stop_times *more);

/* Writes a STOPS block. -1: the host is gone. */
int ml_stop_times_write(struct ml_stop_times *times, ml_u32 pid, enum ml_stop_moment moment);

/* SPDX-License-Identifier: Apache-2.0 */
/* How long threads of the target stood still for us, stop by stop. */
#ifndef MEMLEAK_STOP_TIMES_H
#define MEMLEAK_STOP_TIMES_H

#include "wire.h"

#define ML_STOP_TIMES_MAX 64

struct ml_stop_times {
	ml_u32 n, n_untold; /* of what finds no room the longest are kept */
	struct ml_stop stops[ML_STOP_TIMES_MAX];
};

/* One that ends now. Its pid and moment are filled in by who tells of it. */
void ml_stop_times_add(struct ml_stop_times *times, enum ml_stopped stopped, ml_u64 duration_ns, ml_u32 n_threads);

void ml_stop_times_append(struct ml_stop_times *times, const struct ml_stop_times *more);

/* As a STOPS block. -1 when the host is gone. */
int ml_stop_times_write(struct ml_stop_times *times, ml_u32 pid, enum ml_stop_moment moment);

#endif

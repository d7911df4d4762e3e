/* SPDX-License-Identifier: Apache-2.0 */
/* The high-water mark of a process (preload/segment/keys.h), read by the agent. */
#pragma once

#include "agent/shim/target.h"

#define ML_PRELOAD_PEAK_KEYS 256

/* Of the process that ended last: the keys that held much at its high-water mark. */
struct ml_preload_last_peak {
	ml_u64 keys[ML_PRELOAD_PEAK_KEYS];
	ml_u32 n_keys;
};

/* Writes HIGH_WATER blocks if the mark has risen since the last ones. -1: the host is gone. */
int ml_preload_peak_write(struct ml_preload_target *target);

/* The same for a process that has ended, before its tables are dropped; the host may be gone. */
void ml_preload_peak_close(struct ml_preload_last_peak *last, struct ml_preload_target *target);

/* For the nursery: whether the key held much at the mark of a target or of the process that ended last. */
bool ml_preload_was_in_peak(const struct ml_preload_last_peak *last, struct ml_preload_target *const *targets, size_t n_targets,
			    ml_u64 key);

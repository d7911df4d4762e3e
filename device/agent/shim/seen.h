/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks of each key whose evidence was kept: a key with one stack needs one record only. */
#pragma once

#include "preload/segment/segment.h"

struct ml_preload_seen {
	ml_u64 *stacks; /* direct-mapped, by a hash of key, epoch and stack; a lost entry costs one repeated record */
	ml_u32 n_slots, n_used; /* of stacks */
	ml_u32 *epochs; /* by key; entries of older epochs are invalid */
};

int ml_preload_seen_create(struct ml_preload_seen *seen);
void ml_preload_seen_destroy(struct ml_preload_seen *seen);

/* Whether the same stack was tested before; adds it. */
bool ml_preload_seen_test(struct ml_preload_seen *seen, ml_u64 key, ml_u64 stack_hash);

/* The evidence of the key was dropped: its next record counts as new. */
void ml_preload_seen_forget(struct ml_preload_seen *seen, ml_u64 key);

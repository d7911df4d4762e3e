/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a target's shared tables, read while the target may change them. */
#pragma once

#include "agent/shim/target.h"
#include "agent/evidence/table_blocks.h"

typedef int ml_take_live(void *context, const struct ml_live_row *row);
typedef int ml_take_key(void *context, const struct ml_key_row *row);

/* Both stop at the first result of `take` that is not 0, and return it. */
int ml_preload_rows_live(const struct ml_preload_target *target, ml_take_live *take, void *context);
int ml_preload_rows_keys(const struct ml_preload_target *target, ml_take_key *take, void *context);

/* Adds the target's counters and losses. */
void ml_preload_rows_count(const struct ml_preload_target *target, struct ml_status *status);

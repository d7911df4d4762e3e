/* SPDX-License-Identifier: Apache-2.0 */
/* Writes calls as CALLS blocks, their stacks as EVIDENCE blocks, and counters per function as CALL_STATISTICS blocks. */
#pragma once

#include "agent/snoop/object.h"

#define ML_CALL_BATCH 8192
#define ML_CALL_BATCH_DATA (1u << 20)

struct ml_call_batch {
	const struct ml_snoop_config *config;
	ml_u32 count;
	ml_u32 data_bytes;
	struct ml_call calls[ML_CALL_BATCH];
	_Alignas(8) ml_u8 data[ML_CALL_BATCH_DATA];
};

/* Adds a record of the program; resolves paths of descriptors now. The batch must not be full. */
void ml_call_batch_add(struct ml_call_batch *batch, const void *record, size_t bytes);

bool ml_call_batch_is_full(const struct ml_call_batch *batch);

/* Writes the batch. 0, or -1: the host is gone. */
int ml_call_batch_write(struct ml_call_batch *batch);

#define ML_CALL_STACKS_BYTES (4u << 20)

struct ml_call_stacks {
	size_t bytes;
	_Alignas(8) ml_u8 records[ML_CALL_STACKS_BYTES];
};

/* Adds a record of the program. 0, or -1: the host is gone. */
int ml_call_stacks_add(struct ml_call_stacks *stacks, const void *record, size_t bytes);

/* Writes all added records. 0 or -1 as above. */
int ml_call_stacks_write(struct ml_call_stacks *stacks);

/* Writes all counters. is_final: the last ones. 0 or -1 as above. */
int ml_call_statistics_write(const struct ml_snoop *snoop, bool is_final);

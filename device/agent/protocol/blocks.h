/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's protocol: blocks of wire.h go to standard output, each with its checksum; configuration and control lines of the host
 * come in by standard input (config.h).
 */
#pragma once

#include <sys/uio.h>

#include "wire.h"

/* All return 0, or -1 if the host is gone: then nothing more need be written. */
int ml_blocks_write(enum ml_block_kind kind, const void *payload, size_t payload_bytes);

/* A payload of up to 12 parts, padded with zero bytes to a multiple of 8. */
int ml_blocks_writev(enum ml_block_kind kind, const struct iovec *parts, int n_parts);

int ml_blocks_hello(enum ml_collector collector, int pid);
int ml_blocks_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * The agent could not measure a part of what the host asked for. Condition and answer are words of host/profile/coverage.py. A
 * report with a gap is not complete; a tolerated gap leaves it `complete`.
 */
#define ML_GAP_FUNCTIONS "functions no"
#define ML_GAP_RECORD "record no"
#define ML_GAP_CALLS "calls no"
#define ML_GAP_PROGRAMS_LEFT_OUT "programs tolerated"
#define ML_GAP_PROGRAMS_UNKNOWN "programs unknown"
int ml_blocks_gap(const char *condition_and_answer, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Logs children that were not measured, without --follow. */
void ml_blocks_log_children(ml_u64 n_children);

/* The text is one line: what failed, with which datum (way out). Returns -1, for the caller to return. */
int ml_blocks_error(enum ml_reason reason, const char *format, ...) __attribute__((format(printf, 2, 3)));

int ml_blocks_end(enum ml_reason reason, int wait_status);

ml_u64 ml_clock_ns(void);

#define ML_EVENT_BATCH 4096

struct ml_event_batch {
	size_t count;
	struct ml_event events[ML_EVENT_BATCH];
};

/* Writes an EVENTS block when the batch is full. */
int ml_event_batch_add(struct ml_event_batch *batch, const struct ml_event *event);

/* Writes the rest. */
int ml_event_batch_write(struct ml_event_batch *batch);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evidence through perf events, for kernels without the BPF ring buffer: the programs send the head of a record, the kernel adds
 * registers and stack, and this file makes struct ml_evidence of both.
 */
#pragma once

#include <bpf/libbpf.h>

#include "wire.h"

struct ml_perf_path;

/*
 * evidence_fd, events_fd: the perf event arrays of the programs. on_record gets struct ml_evidence or
 * struct ml_event records. NULL with errno set.
 */
struct ml_perf_path *ml_perf_path_open(int evidence_fd, int events_fd, ml_u32 stack_bytes, ring_buffer_sample_fn on_record,
				       void *context);

/* Returns the number of records. */
int ml_perf_path_drain(struct ml_perf_path *path);

/* Records dropped by the kernel. */
ml_u64 ml_perf_path_lost(const struct ml_perf_path *path);

void ml_perf_path_close(struct ml_perf_path *path);

/* SPDX-License-Identifier: Apache-2.0 */
/* A recording (docs/wire-protocol.md) that a process writes of itself, by system calls alone. */
#pragma once

#include <stddef.h>
#include <sys/uio.h>

#include "preload/segment/segment.h"

#define ML_RECORDING_PATH_MAX 4096 /* PATH_MAX of limits.h */
#define ML_RECORDING_SCRATCH_BYTES (4u << 20)

struct ml_recording {
	long fd;
	long error;             /* the first, as -errno; 0 = none. After it nothing more is written. */
	unsigned char *scratch; /* ML_RECORDING_SCRATCH_BYTES of memory, made as it is used */
	char path[ML_RECORDING_PATH_MAX]; /* of what is being written */
};

/* Makes the file beside `path` and writes its header. 0 or -errno. */
int ml_recording_create(struct ml_recording *recording, const char *path);

/* A block of these parts one behind the other, padded. */
void ml_recording_write(struct ml_recording *recording, enum ml_block_kind kind, const struct iovec *parts, int n_parts);

/* Puts the file in the place of `path`, or takes it away where something failed. 0 or -errno. */
int ml_recording_finish(struct ml_recording *recording, const char *path);

/* KEYS and LIVE: what is held. Returns totals for STATUS and marks. */
struct ml_status ml_recording_count(const struct ml_view *view);
void ml_recording_rows(struct ml_recording *recording, const struct ml_view *view);

/*
 * Until calls that were on their way have put their evidence into their rings: a block is in the books before its stack. Some
 * 100 ms at most for each thread.
 */
void ml_recording_await_calls(const struct ml_view *view);

/* EVIDENCE: all that the threads have put into their rings so far. */
void ml_recording_evidence(struct ml_recording *recording, const struct ml_view *view);

/* HOOKED: the modules whose slots lead to us, where that is how we are called. */
void ml_recording_hooked(struct ml_recording *recording, const struct ml_view *view);

/* MAPS as they are now, and MODULES: files of code with their build-ids. */
void ml_recording_modules(struct ml_recording *recording, const struct ml_view *view);

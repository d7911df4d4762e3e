/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that records itself, without an agent: calls of memleak.h come in, a recording file (docs/wire-protocol.md)
 * goes out. This header: the file, written by system calls alone.
 */
#pragma once

#include <sys/uio.h>

#include "preload/segment/segment.h"

#define ML_RECORDING_PATH_MAX 4096 /* PATH_MAX of limits.h */
#define ML_RECORDING_SCRATCH_BYTES (4u << 20)

struct ml_recording {
	long fd;
	long error;             /* the first -errno; nothing is written after it */
	unsigned char *scratch; /* ML_RECORDING_SCRATCH_BYTES of memory */
	char path[ML_RECORDING_PATH_MAX]; /* of the temporary file */
};

/* Creates the file beside `path` and writes its header. 0 or -errno. */
int ml_recording_create(struct ml_recording *recording, const char *path);

/* Writes a block of these parts, padded. */
void ml_recording_write(struct ml_recording *recording, enum ml_block_kind kind, const struct iovec *parts, int n_parts);

/* Renames the file to `path`, or removes it after an error. 0 or -errno. */
int ml_recording_finish(struct ml_recording *recording, const char *path);

/* Totals for STATUS and marks; KEYS and LIVE. */
struct ml_status ml_recording_count(const struct ml_view *view);
void ml_recording_rows(struct ml_recording *recording, const struct ml_view *view);

/*
 * Waits until calls in progress have stored their evidence, since a block enters the table before its stack is sent. At
 * most about 100 ms for each thread.
 */
void ml_recording_await_calls(const struct ml_view *view);

/* EVIDENCE: everything in the threads' rings. */
void ml_recording_evidence(struct ml_recording *recording, const struct ml_view *view);

/* HOOKED: the modules with patched slots, if there are any. */
void ml_recording_hooked(struct ml_recording *recording, const struct ml_view *view);

/* The current MAPS, and MODULES: mapped ELF files with their build-ids. */
void ml_recording_modules(struct ml_recording *recording, const struct ml_view *view);

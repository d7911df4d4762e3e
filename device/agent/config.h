/* SPDX-License-Identifier: Apache-2.0 */
/* What the host asks for: configuration lines on standard input, then control lines. */
#ifndef MEMLEAK_CONFIG_H
#define MEMLEAK_CONFIG_H

#include <stdbool.h>

#include "wire.h"

#define ML_MAX_PROBES 64
#define ML_MAX_ARGUMENTS 4096

/* One probed function; all offsets are file offsets in `path`. */
struct ml_probe {
	ml_u32 function; /* enum ml_function */
	ml_u64 function_offset;
	ml_u64 entry_offset;
	bool has_return;
	ml_u64 return_offset;
	ml_u64 text_low; /* the allocator's own code: a call from there is internal */
	ml_u64 text_high;
	char *path;
};

struct ml_config {
	int pid;     /* 0 = a command is started, or awaited */
	char *await; /* NAME:NONCE, by which a process joins that somebody else starts (preload); NULL = none */
	char **argv; /* NULL-terminated; empty = attach to pid */
	int n_arguments;
	char **env_changes; /* NAME=VALUE; NULL-terminated */
	int n_env_changes;
	int stdio[3]; /* for the command; -1 = /dev/null */
	bool follow;
	ml_u32 stack_bytes;
	ml_u64 sample_bytes;
	bool every_stack;
	ml_u64 older_ns;
	ml_u64 min_size;
	ml_u64 max_size;
	ml_u64 max_live;
	bool events;
	bool mmap;
	bool perf_event_path; /* force the path for kernels without a BPF ring buffer */
	int no_evidence;      /* accounting only: the baseline of the overhead benchmark; 2 = and no frame rules (BPF) */
	bool empty_probes;    /* programs that do nothing: the floor of the overhead benchmark */
	ml_u64 nursery_bytes;
	ml_u64 ring_bytes;
	ml_u32 host_silence_s; /* see host_watch.h; 0 = the host is silent as long as it likes */
	char *shim_path;
	struct ml_probe probes[ML_MAX_PROBES];
	int n_probes;
};

/*
 * Reads lines up to `start`. 0, or -1 after an ERROR block was written (or standard input closed).
 */
int ml_config_read(struct ml_config *config);

enum ml_control {
	ML_CONTROL_NONE,
	ML_CONTROL_SNAPSHOT,
	ML_CONTROL_STOP,
	ML_CONTROL_CLOSED, /* the host is gone */
};

/* SIGTERM and SIGHUP become ML_CONTROL_STOP; SIGINT and SIGPIPE are ignored. */
void ml_control_catch_signals(void);

/* The next control line, waiting at most timeout_ms for one. */
enum ml_control ml_control_poll(int timeout_ms);

#endif

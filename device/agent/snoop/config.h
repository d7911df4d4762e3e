/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration lines of snoop, beside those of every session (agent/protocol/config.h). */
#pragma once

#include "bpf/snoop/tables.h"
#include "agent/protocol/config.h"

#define ML_SNOOP_PROCESSES 256
#define ML_SNOOP_WANTED_THREADS 256
#define ML_SNOOP_OBJECTS 4096
#define ML_SNOOP_SITES (64u << 10)

/* A file that functions are probed in, and in which process: 0 = the command. */
struct ml_snoop_file {
	int pid;
	ml_u32 file; /* index in ml_config.files */
};

struct ml_snoop_site {
	ml_u32 file;
	ml_u32 function;
	ml_u32 kind;   /* enum ml_probe_kind */
	ml_u64 offset; /* in the file */
};

struct ml_snoop_config {
	struct ml_config session;
	int pids[ML_SNOOP_PROCESSES];
	int n_pids;
	ml_u32 threads[ML_SNOOP_WANTED_THREADS];
	int n_threads;
	ml_u64 rate;
	bool without_multi, without_cookies, without_atomics; /* as on older kernels */
	struct ml_snoop_function functions[ML_CALL_FUNCTIONS_MAX];
	ml_u32 n_functions;
	struct ml_snoop_file files[ML_SNOOP_OBJECTS];
	ml_u32 n_files;
	struct ml_snoop_site *sites; /* sorted by file, then by kind */
	ml_u32 n_sites;
};

/* Reads lines up to `start`. NULL after an ERROR block, or when standard input closed. */
struct ml_snoop_config *ml_snoop_config_read(void);

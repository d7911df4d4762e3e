/* SPDX-License-Identifier: Apache-2.0 */
/* libbpf for the three BPF sessions: its last warning, the limits it needs, counters per CPU. */
#ifndef MEMLEAK_LIBBPF_H
#define MEMLEAK_LIBBPF_H

#include "wire.h"

extern char ml_libbpf_warning[512]; /* one line, "" = none */

/*
 * Before an object is loaded: keeps libbpf's warnings (with MEMLEAKD_VERBOSE all its messages go to stderr, too) and raises
 * the agent's limits.
 */
void ml_libbpf_begin(ml_u32 max_files);

/* Sum of one counter of a per-CPU array of ml_u64 over all CPUs. */
ml_u64 ml_libbpf_counter(int map_fd, int n_cpus, ml_u32 which);

/* Writes an ERROR block: what failed, the errno and the way out. Returns -1. */
int ml_libbpf_fail(const char *what, int error, const char *way_out);

#endif

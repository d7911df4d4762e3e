/* SPDX-License-Identifier: Apache-2.0 */
/* libbpf for the three BPF sessions: its last warning, the limits it needs, counters per CPU. */
#pragma once

#include <bpf/btf.h>
#include <bpf/libbpf.h>

#include "wire.h"

extern char ml_libbpf_warning[512]; /* one line, "" = none */

/*
 * Before an object is loaded: keeps libbpf's warnings (with MEMLEAKD_VERBOSE all its messages go to stderr, too) and raises
 * the agent's limits.
 */
void ml_libbpf_begin(ml_u32 max_files);

/* Maps the memory of an array that the programs share with the agent. NULL with errno. */
void *ml_libbpf_map(const struct bpf_object *object, const char *name, size_t bytes);

/* Sum of one counter of a per-CPU array of ml_u64 over all CPUs. */
ml_u64 ml_libbpf_counter(int map_fd, int n_cpus, ml_u32 which);

/* Offset of a member of a structure in bytes; -1 = it has no such member. */
int ml_libbpf_member(const struct btf *btf, const char *structure, const char *name);

/* Writes an ERROR block: what failed, the errno and the way out. Returns -1. */
int ml_libbpf_fail(const char *what, int error, const char *way_out);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The BPF tracer of the heap: places probes, reads the tables that the programs share, and drains their evidence. Here: the
 * loaded object, its maps and its links. In comes the configuration, out come blocks (session.c).
 */
#pragma once

#include <bpf/libbpf.h>

#include "bpf/session.h"
#include "agent/protocol/config.h"
#include "agent/bpf/perf_path.h"
#include "agent/probes/uprobe_multi.h"

/* With --all: blocks that were live when their process ended. */
struct ml_bpf_ended {
	ml_u64 objects, bytes;
	ml_u32 newest_epoch, n_keys; /* of running processes, at the last check */
};

struct ml_bpf {
	struct bpf_object *object;
	struct ml_links links;
	bool has_multi;           /* the programs are loaded for multi links only */
	int levels_fd, overflow_fd, processes_fd, stacks_fd, counters_fd, spans_fd;
	int n_cpus;               /* possible CPUs: rows of counters */
	struct ml_bpf_key *keys;  /* ML_BPF_KEY_SLOTS, shared with the programs */
	struct ml_bpf_code *code; /* shared with the programs */
	struct ml_bpf_peak *peak; /* shared, too; NULL: the old object has none */
	ml_u64 *peak_words;       /* ML_BPF_KEY_SLOTS */
	ml_u64 peak_sent;         /* the generation last sent to the host */
	struct ml_frame_rule *rules; /* ML_FRAME_RULES, shared with the programs; NULL: they do not walk stacks */
	struct ml_bpf_bucket *levels[ML_BPF_LEVELS]; /* live table, code->n_levels of them */
	ml_u32 buckets_shift;     /* of level 0 */
	bool finds_mappings;      /* the programs have bpf_find_vma() (Linux 5.17) and the kernel its BTF */
	ml_u32 alternate_stack;   /* struct ml_bpf_options.alternate_stack */
	bool sees_mappings;       /* the programs are called at mmap, munmap and exec */
	ml_u32 n_untaught;        /* records since the last that yielded a rule */
	ml_u64 recycle_ns;        /* when unused rules may be dropped again */
	bool is_system_wide;        /* --all: tables of ended processes are swept (ended_processes.h) */
	struct ml_bpf_key forgotten; /* sums of the removed keys */
	struct ml_bpf_ended ended;
	bool is_old;              /* the object for kernels without a ring buffer or atomics that return */
	struct ring_buffer *ring;
	struct ml_perf_path *perf_path; /* instead of the ring, on older kernels */
};

/* Loads the programs that the configuration needs. 0, or -1 after an ERROR block. */
int ml_bpf_load(struct ml_bpf *bpf, const struct ml_config *config, ring_buffer_sample_fn on_record, void *context);

/* Places all probes in the process (pid > 0) or in every process (pid = -1). 0, or -1 after an ERROR block. */
int ml_bpf_attach(struct ml_bpf *bpf, const struct ml_config *config, int pid);

/* Removes all probes. The programs do nothing from the beginning of the call on. */
void ml_bpf_detach(struct ml_bpf *bpf);

/* Detaches, and closes the object. */
void ml_bpf_destroy(struct ml_bpf *bpf);

/* Passes all records of the programs to on_record; returns the number of evidence records. */
int ml_bpf_drain(struct ml_bpf *bpf);

/* Waits until the timeout, input on a file, or a program's wake-up of the ring. */
void ml_bpf_wait(struct ml_bpf *bpf, int input, int timeout_ms);

/* Writes an ERROR block: what failed, the errno and the way out. Returns -1. */
int ml_bpf_fail(const char *what, int error);

/* Sum of one counter over all CPUs. */
ml_u64 ml_bpf_counter(const struct ml_bpf *bpf, ml_u32 which);

/* Entry in the key table; NULL: none. */
struct ml_bpf_key *ml_bpf_find_key(const struct ml_bpf *bpf, ml_u64 key);

/*
 * For the nursery (struct ml_nursery_source); context: struct ml_bpf. Live blocks of the key. A key without a slot counts as 1,
 * so that its evidence is kept; with --all as 0, because most such keys are of ended processes.
 */
ml_u64 ml_bpf_live_objects(void *context, ml_u64 key, ml_u64 *allocated);

/* The next allocation of the key brings evidence. */
void ml_bpf_ask_again(void *context, ml_u64 key);

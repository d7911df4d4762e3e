/* SPDX-License-Identifier: Apache-2.0 */
/* The loaded BPF object: its maps, mapped where the kernel allows, and its links. */
#ifndef MEMLEAK_BPF_OBJECT_H
#define MEMLEAK_BPF_OBJECT_H

#include <bpf/libbpf.h>

#include "bpf/session.h"
#include "agent/protocol/config.h"
#include "agent/bpf/perf_path.h"

/* Of every process: what those that have ended took with them. */
struct ml_bpf_ended {
	ml_u64 objects, bytes;
	ml_u32 newest_epoch, n_keys; /* of those that live, when it was looked last */
};

#define ML_MAX_LINKS (2 * ML_MAX_PROBES + 8)

struct ml_bpf {
	struct bpf_object *object;
	struct bpf_link *links[ML_MAX_LINKS];
	int n_links;
	int multi_links[ML_MAX_LINKS]; /* files of links for many probes each */
	int n_multi_links;
	bool has_multi;           /* the programs are loaded for such links, and for no others */
	int levels_fd, overflow_fd, processes_fd, stack_ends_fd, counters_fd, spans_fd;
	int n_cpus;               /* possible CPUs: rows of counters */
	struct ml_bpf_key *keys;  /* ML_BPF_KEY_SLOTS, shared with the programs */
	struct ml_bpf_code *code; /* shared with the programs */
	struct ml_bpf_peak *peak; /* the same; NULL: the old object keeps none */
	ml_u64 *peak_words;       /* ML_BPF_KEY_SLOTS */
	ml_u64 peak_sent;         /* the generation that the host knows */
	struct ml_frame_rule *rules; /* ML_FRAME_RULES, shared with the programs; NULL: they do not walk */
	struct ml_bpf_bucket *levels[ML_BPF_LEVELS]; /* live table, code->n_levels of them */
	ml_u32 buckets_shift;     /* of level 0 */
	bool sees_mappings;       /* the programs are told of mmap, munmap and exec */
	ml_u32 n_untaught;        /* records since the last that taught a rule */
	ml_u64 recycle_ns;        /* when the rules may be looked through again */
	ml_u64 *oldest_ns;        /* by slot of the key table: see block_ages.h; NULL: not read yet */
	ml_u64 ages_read_ns;
	ml_u64 evidence_after_ns;
	bool is_system_wide;        /* every process is traced: those that have ended are forgotten (ended_processes.h) */
	struct ml_bpf_key forgotten; /* sums of the keys of such */
	struct ml_bpf_ended ended;
	bool is_old;              /* the object for kernels without a ring buffer or atomics that return */
	struct ring_buffer *ring;
	struct ml_perf_path *perf_path; /* instead, on older kernels */
};

/* Loads the programs that the configuration needs. 0, or -1 after an ERROR block. */
int ml_bpf_load(struct ml_bpf *bpf, const struct ml_config *config, ring_buffer_sample_fn on_record, void *context);

/* Hands what the programs sent to on_record; returns how many records of evidence came. */
int ml_bpf_drain(struct ml_bpf *bpf);

/* Waits so long, or until there is input on a file, or until a program says that it is worth while to drain. */
void ml_bpf_wait(struct ml_bpf *bpf, int input, int timeout_ms);

/* Tells the host what could not be done, why (an errno) and what to do. -1. */
int ml_bpf_fail(const char *what, int error);

/* Sum of one counter over all CPUs. */
ml_u64 ml_bpf_counter(const struct ml_bpf *bpf, ml_u32 which);

#endif

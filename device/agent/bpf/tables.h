/* SPDX-License-Identifier: Apache-2.0 */
/* Tables that the BPF programs share with the agent: the levels of the live table, their growth, their sweeps, and what is written of them. */
#pragma once

#include "agent/bpf/object.h"
#include "agent/evidence/regions.h"

/* Makes and maps the first level. 0, or -1 after an ERROR block. */
int ml_bpf_begin_levels(struct ml_bpf *bpf);

/* Adds a level when the newest fills up, until there is room for max_live blocks. */
void ml_bpf_grow(struct ml_bpf *bpf, ml_u64 max_live);

static inline ml_u32 ml_bpf_level_buckets(const struct ml_bpf *bpf, ml_u32 level)
{
	return 1u << (bpf->buckets_shift + level);
}

/* With --all: removes blocks, keys and entries of ended processes, so that the tables hold running processes only. Removed blocks count as freed, and in bpf->ended. The check costs some system calls for each process. */
void ml_bpf_remove_ended(struct ml_bpf *bpf);

/* Writes the key counters, the live table and the region ledger. -1: the host is gone. */
int ml_bpf_snapshot(const struct ml_bpf *bpf, const struct ml_regions *regions, ml_u64 number);

/* Running totals and losses. self_tests: calls to leave out; agent_lost: by enum ml_lost, added. -1: the host is gone. */
int ml_bpf_status(const struct ml_bpf *bpf, ml_u64 evidence_records, ml_u64 self_tests, const ml_u64 *agent_lost);

/* Writes HIGH_WATER blocks if the mark that the programs keep (bpf/peak.bpf.h) has risen since the last ones. -1: the host is gone. */
int ml_bpf_peak_write(struct ml_bpf *bpf);

/* For the nursery: whether the key held much at the mark. context: struct ml_bpf. */
bool ml_bpf_was_in_peak(void *context, ml_u64 key);

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_BPF_SNAPSHOT_H
#define MEMLEAK_BPF_SNAPSHOT_H

#include "agent/bpf/object.h"
#include "agent/evidence/regions.h"

/* Writes the key counters, the live table and the region ledger. -1: the host is gone. */
int ml_bpf_snapshot(const struct ml_bpf *bpf, const struct ml_regions *regions, ml_u64 number);

/* Running totals and losses. self_tests: calls to leave out; agent_lost: by enum ml_lost, added. -1: the host is gone. */
int ml_bpf_status(const struct ml_bpf *bpf, ml_u64 evidence_records, ml_u64 self_tests,
		   const ml_u64 *agent_lost);

#endif

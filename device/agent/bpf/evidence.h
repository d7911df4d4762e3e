/* SPDX-License-Identifier: Apache-2.0 */
/* Converts evidence of the BPF programs for the nursery: their stack words have a form of their own (bpf/session.h). */
#ifndef MEMLEAK_BPF_EVIDENCE_H
#define MEMLEAK_BPF_EVIDENCE_H

#include "bpf/session.h"
#include "agent/evidence/nursery.h"

/* Adds a record of `bytes` bytes, at least its head. -1: out of memory, or the record is inconsistent. */
int ml_bpf_evidence_keep(struct ml_nursery *nursery, const struct ml_evidence *record, ml_u64 bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Evidence as the BPF programs send it, for the nursery: words instead of a stack have a form of their own (../bpf/session.h). */
#ifndef MEMLEAK_BPF_EVIDENCE_H
#define MEMLEAK_BPF_EVIDENCE_H

#include "bpf/session.h"
#include "agent/evidence/nursery.h"

/* Keeps a record of so many bytes, whose head is there. -1: no memory, or the record contradicts itself. */
int ml_bpf_evidence_keep(struct ml_nursery *nursery, const struct ml_evidence *record, ml_u64 bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* How long each stack key has held a block: --evidence-after. */
#ifndef MEMLEAK_BLOCK_AGES_H
#define MEMLEAK_BLOCK_AGES_H

#include "agent/bpf/object.h"

/* Reads the live table: which block of each key is the oldest. What cannot be read is taken for old. */
void ml_bpf_read_ages(struct ml_bpf *bpf, ml_u64 now_ns);

/* As struct ml_nursery_source wants it; context: struct ml_bpf. Reads the live table anew where that is long ago. */
ml_u64 ml_bpf_wanted_from(void *context, ml_u64 key, ml_u64 now_ns);

#endif

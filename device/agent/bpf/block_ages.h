/* SPDX-License-Identifier: Apache-2.0 */
/* The age of the oldest block of each stack key, for --evidence-after. */
#ifndef MEMLEAK_BLOCK_AGES_H
#define MEMLEAK_BLOCK_AGES_H

#include "agent/bpf/object.h"

/* Scans the live table for the oldest block of each key. Unread blocks count as old. */
void ml_bpf_read_ages(struct ml_bpf *bpf, ml_u64 now_ns);

/* As ml_nursery_source.wanted_from; context: struct ml_bpf. Scans the live table again after a second. */
ml_u64 ml_bpf_wanted_from(void *context, ml_u64 key, ml_u64 now_ns);

#endif

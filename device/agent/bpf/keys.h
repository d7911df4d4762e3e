/* SPDX-License-Identifier: Apache-2.0 */
/* The key table as the nursery sees it (nursery.h, struct ml_nursery_source); context: struct ml_bpf. */
#ifndef MEMLEAK_BPF_KEYS_H
#define MEMLEAK_BPF_KEYS_H

#include "agent/bpf/object.h"

/* Its entry in the key table; NULL: it has none. */
struct ml_bpf_key *ml_bpf_find_key(const struct ml_bpf *bpf, ml_u64 key);

/*
 * Blocks of the key that are live; 1 for a key that has no slot: nobody can ask about it, its evidence is kept. Where every
 * process is traced 0: most such keys are of processes that have ended.
 */
ml_u64 ml_bpf_live_objects(void *context, ml_u64 key, ml_u64 *allocated);

/* The next allocation of the key brings evidence. */
void ml_bpf_ask_again(void *context, ml_u64 key);

#endif

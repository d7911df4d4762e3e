/* SPDX-License-Identifier: Apache-2.0 */
/* The key table as the nursery sees it (nursery.h, struct ml_nursery_source); context: struct ml_bpf. */
#ifndef MEMLEAK_BPF_KEYS_H
#define MEMLEAK_BPF_KEYS_H

#include "bpf_object.h"

/* Blocks of the key that are live; 1 for a key that has no slot: nobody can ask about it, its evidence is kept. */
ml_u64 ml_bpf_live_objects(void *context, ml_u64 key);

/* The next allocation of the key brings evidence. */
void ml_bpf_ask_again(void *context, ml_u64 key);

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The table of stack keys (session.h). */
#pragma once

#include "peak.bpf.h"

/*
 * Looks for the key in all its slots first: the agent empties slots (ended_processes.h), so the key may follow an empty
 * one.
 */
static __noinline ml_u32 ml_claim_key_slot(ml_u64 key, ml_u64 process, ml_u64 flags)
{
	ml_u32 index = (ml_u32)(key >> 20);

	for (int i = options.is_system_wide ? 0 : ML_BPF_KEY_PROBES; i < 2 * ML_BPF_KEY_PROBES; i++) {
		ml_u32 slot = (index + i % ML_BPF_KEY_PROBES) & (ML_BPF_KEY_SLOTS - 1);
		struct ml_bpf_key *entry = bpf_map_lookup_elem(&keys, &slot);
		ml_u64 found;

		if (!entry)
			break;
		found = entry->key;
		if (!found && i >= ML_BPF_KEY_PROBES) {
			found = __sync_val_compare_and_swap(&entry->key, 0, key);
			if (!found) {
				entry->process = process;
				entry->flags = flags;
				found = key;
			}
		}
		if (found == key)
			return slot;
	}
	return ML_BPF_NO_KEY;
}

/* The slot of a key, claimed if it is new. ML_BPF_NO_KEY if all its slots are taken. */
static __always_inline ml_u32 ml_key_slot(ml_u64 key, ml_u64 process, ml_u64 flags)
{
	ml_u32 slot = (ml_u32)(key >> 20) & (ML_BPF_KEY_SLOTS - 1);
	struct ml_bpf_key *entry = bpf_map_lookup_elem(&keys, &slot);

	return entry && entry->key == key ? slot : ml_claim_key_slot(key, process, flags);
}

/* Counts an allocation; returns the key's number of live blocks. */
static __always_inline ml_u64 ml_count_alloc(ml_u32 slot, struct ml_bpf_key *entry, ml_u64 size)
{
	ml_peak_see(slot, entry);
	__sync_fetch_and_add(&entry->alloc_bytes, size);
	ml_peak_add(size);
	return __sync_fetch_and_add(&entry->alloc_objects, 1) + 1 - entry->free_objects;
}

static __always_inline void ml_count_free(ml_u32 slot, struct ml_bpf_key *entry, ml_u64 size)
{
	ml_peak_see(slot, entry);
	__sync_fetch_and_add(&entry->free_objects, 1);
	__sync_fetch_and_add(&entry->free_bytes, size);
	ml_peak_add(-size);
}

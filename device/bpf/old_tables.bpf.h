/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The tables as the kernel's hash maps, with atomic additions that return nothing: slower, for older kernels. */
#pragma once

#include "overflow.bpf.h"
#include "thread_start.bpf.h"

ML_MAP(HASH, threads, ml_u32, struct ml_thread, ML_BPF_THREADS, BPF_F_NO_PREALLOC);

/* Slot of the key table → its key. The map's lock decides between concurrent claims. */
ML_MAP(HASH, key_owners, ml_u32, ml_u64, ML_BPF_KEY_SLOTS, BPF_F_NO_PREALLOC);

static const struct ml_thread new_thread;

static __noinline struct ml_thread *ml_make_thread(ml_u32 tid)
{
	ml_u64 process = ml_current_process();
	struct ml_thread *thread;

	if (!process)
		return NULL;
	bpf_map_update_elem(&threads, &tid, &new_thread, BPF_NOEXIST);
	thread = bpf_map_lookup_elem(&threads, &tid);
	if (!thread) {
		ml_count(ML_LOST_THREADS_FULL, 1);
		return NULL;
	}
	thread->tid = tid;
	ml_init_thread(thread, tid, process);
	return thread;
}

/* The state left by an earlier call; NULL if there is none. */
static __always_inline struct ml_thread *ml_known_thread(void)
{
	ml_u32 tid = (ml_u32)bpf_get_current_pid_tgid();

	return bpf_map_lookup_elem(&threads, &tid);
}

static __always_inline struct ml_thread *ml_this_thread(void)
{
	struct ml_thread *thread = ml_known_thread();

	return thread ? thread : ml_make_thread((ml_u32)bpf_get_current_pid_tgid());
}

static __always_inline void ml_forget_thread(ml_u32 tid)
{
	bpf_map_delete_elem(&threads, &tid);
}

static __always_inline bool ml_own_slot(ml_u32 slot, ml_u64 key, ml_u64 process, ml_u64 flags)
{
	ml_u64 *owner = bpf_map_lookup_elem(&key_owners, &slot);
	struct ml_bpf_key *entry;

	if (owner)
		return *owner == key;
	if (bpf_map_update_elem(&key_owners, &slot, &key, BPF_NOEXIST)) {
		owner = bpf_map_lookup_elem(&key_owners, &slot);
		return owner && *owner == key;
	}
	entry = bpf_map_lookup_elem(&keys, &slot);
	if (entry) {
		entry->process = process;
		entry->flags = flags;
		entry->key = key;
	}
	return true;
}

static __noinline ml_u32 ml_key_slot(ml_u64 key, ml_u64 process, ml_u64 flags)
{
	for (ml_u32 i = 0; i < ML_BPF_KEY_PROBES; i++) {
		ml_u32 slot = ((ml_u32)(key >> 20) + i) & (ML_BPF_KEY_SLOTS - 1);

		if (ml_own_slot(slot, key, process, flags))
			return slot;
	}
	return ML_BPF_NO_KEY;
}

static __always_inline ml_u64 ml_count_alloc(ml_u32 slot, struct ml_bpf_key *entry, ml_u64 size)
{
	(void)slot;
	__sync_fetch_and_add(&entry->alloc_bytes, size);
	__sync_fetch_and_add(&entry->alloc_objects, 1);
	return entry->alloc_objects - entry->free_objects;
}

static __always_inline void ml_count_free(ml_u32 slot, struct ml_bpf_key *entry, ml_u64 size)
{
	(void)slot;
	__sync_fetch_and_add(&entry->free_objects, 1);
	__sync_fetch_and_add(&entry->free_bytes, size);
}

static __always_inline bool ml_claim(ml_u64 address, ml_u64 process, struct ml_bpf_block *block)
{
	block->process = process;
	return ml_claim_overflow(address, block);
}

static __always_inline bool ml_put(ml_u64 address, const struct ml_bpf_block *block, struct ml_bpf_block *old, bool *had_old,
				   bool is_beside)
{
	(void)is_beside; /* a hash map has one block an address; a second reference counts as a missed free */
	*had_old = ml_claim(address, block->process, old);
	return ml_put_overflow(address, block);
}

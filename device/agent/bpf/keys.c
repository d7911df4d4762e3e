// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/keys.h"

struct ml_bpf_key *ml_bpf_find_key(const struct ml_bpf *bpf, ml_u64 key)
{
	for (ml_u32 i = 0; i < ML_BPF_KEY_PROBES; i++) {
		struct ml_bpf_key *entry = &bpf->keys[((ml_u32)(key >> 20) + i) & (ML_BPF_KEY_SLOTS - 1)];

		if (__atomic_load_n(&entry->key, __ATOMIC_RELAXED) == key)
			return entry;
	}
	return NULL;
}

ml_u64 ml_bpf_live_objects(void *context, ml_u64 key, ml_u64 *allocated)
{
	const struct ml_bpf_key *entry = ml_bpf_find_key(context, key);

	*allocated = entry ? __atomic_load_n(&entry->alloc_objects, __ATOMIC_SEQ_CST) : 0;
	if (!entry) /* of every process, those that have ended have no keys any more */
		return !((struct ml_bpf *)context)->is_system_wide;
	return *allocated - __atomic_load_n(&entry->free_objects, __ATOMIC_SEQ_CST);
}

void ml_bpf_ask_again(void *context, ml_u64 key)
{
	struct ml_bpf_key *entry = ml_bpf_find_key(context, key);

	if (entry)
		__atomic_store_n(&entry->next_due, 0, __ATOMIC_SEQ_CST);
}

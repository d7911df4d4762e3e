/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Evidence: the registers and the stack of one allocation, taken as the allocator returns. */
#ifndef MEMLEAK_EVIDENCE_BPF_H
#define MEMLEAK_EVIDENCE_BPF_H

#ifdef ML_OLD_KERNEL
#include "perf_output.bpf.h"
#else
#include "ring_output.bpf.h"
#endif

/* One allocation of a known key in 2 to this is sent again, to verify the key: exact ones could err by a stale rule only. */
#define ML_VERIFY_SHIFT 10
#define ML_VERIFY_SHIFT_EXACT 16
/*
 * Evidence is due at new heights of a key's live blocks: at 1, 2, 4, 8 …, which verifies a leak as it grows;
 * for partial keys at each up to this one, so that every block of a small leak speaks for itself; for exact ones
 * at steps of 2 to this.
 */
#define ML_DUE_EACH 16
#define ML_DUE_STEP_EXACT 5

/* Is this one of the few allocations of a known key that are sent again? */
static __always_inline bool ml_verify_due(const struct ml_bpf_block *block, const struct ml_bpf_key *entry)
{
	ml_u64 random = block->sequence * 0x9e3779b97f4a7c15ull;

	return random >> (64 - ML_VERIFY_SHIFT) == 0 &&
	       (random >> (64 - ML_VERIFY_SHIFT_EXACT) == 0 || !(entry->flags & ML_BPF_KEY_EXACT));
}

/*
 * Of a known key: what only verifies it leaves half of the ring to the first evidence of others. Moves the
 * mark at which evidence is due next. Returns false for what is not worth sending.
 */
static __noinline bool ml_is_worth_sending(struct ml_bpf_key *entry, ml_u64 live_objects)
{
	if (!options.every_stack && ml_output_is_half_full())
		return false;
	if (live_objects < entry->next_due)
		return true;
	if (entry->flags & ML_KEY_PARTIAL && live_objects < ML_DUE_EACH)
		entry->next_due = live_objects + 1;
	else
		entry->next_due = live_objects << (entry->flags & ML_BPF_KEY_EXACT ? ML_DUE_STEP_EXACT : 1);
	return true;
}

/* Still due: the next allocation tries again. */
static __noinline void ml_sending_failed(struct ml_bpf_key *entry)
{
	if (entry)
		entry->next_due = 0;
	ml_count(ML_LOST_RING_FULL, 1);
}

/* The walk of an exact key has read all that unwinding needs. What verifies it is the stack as it is. */
static __always_inline ml_u64 ml_evidence_flags(bool is_exact, ml_u64 due)
{
	if (due)
		return ML_EVIDENCE_VERIFY;
	return is_exact && !options.every_stack ? ML_EVIDENCE_STACK_SPARSE : 0;
}

/* Without evidence: only what rules can be learned from, once for each key. */
static __always_inline void ml_bring_unknown(struct ml_regs *regs, struct ml_thread *thread,
					     const struct ml_bpf_block *block, ml_u64 address, struct ml_bpf_key *entry)
{
	if (!thread->walk.is_unknown || entry->next_due)
		return;
	entry->next_due = ~0ull;
	ml_send_evidence(regs, thread, block, address, entry->key, 0, options.stack_bytes);
}

/* Sends evidence where it is due. `live_objects` counts this block already. */
static __always_inline void ml_bring_evidence(struct ml_regs *regs, struct ml_thread *thread,
					      const struct ml_bpf_block *block, ml_u64 address, struct ml_bpf_key *entry,
					      ml_u64 live_objects, ml_u32 cap)
{
	ml_u64 due = entry->next_due;
	bool is_exact = entry->flags & ML_BPF_KEY_EXACT; /* read once: what lies in a map is read anew after each store */

	if (live_objects < due && !options.every_stack && !ml_verify_due(block, entry))
		return;
	if (!due)
		entry->next_due = is_exact ? live_objects << ML_DUE_STEP_EXACT : live_objects + 1;
	else if (!ml_is_worth_sending(entry, live_objects))
		return;
	if (ml_send_evidence(regs, thread, block, address, entry->key, ml_evidence_flags(is_exact, due), cap))
		ml_sending_failed(entry);
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Evidence: the registers and the stack of one allocation, taken as the allocator returns. */
#pragma once

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
 * mark at which evidence is due next. stack_bytes: that will be sent, about. Returns false for what is not worth sending.
 */
static __noinline bool ml_is_worth_sending(struct ml_bpf_key *entry, ml_u64 live_objects, ml_u64 stack_bytes)
{
	if (!options.every_stack && !ml_reserve_verifying(stack_bytes))
		return false;
	if (live_objects < entry->next_due)
		return true;
	if (entry->flags & ML_KEY_PARTIAL && live_objects < ML_DUE_EACH && !options.is_system_wide)
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
	return is_exact && !options.every_stack && !options.whole_stacks ? ML_EVIDENCE_STACK_SPARSE : 0;
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

/*
 * With --adaptive: is the stack not worth evidence? Nothing is known to be lost by that only where the key is the whole
 * stack: then what it holds is what the stack holds, this block among it.
 */
static __noinline bool ml_is_cold(const struct ml_bpf_key *entry)
{
	const struct ml_bpf_code *shared = ml_code();

	return shared && (entry->flags & (ML_BPF_KEY_EXACT | ML_BPF_KEY_HOT)) == ML_BPF_KEY_EXACT &&
	       entry->alloc_bytes - entry->free_bytes < *(const volatile ml_u64 *)&shared->hot_bytes;
}

/* above: up to the stack's end, where that is known. */
static __always_inline ml_u64 ml_slice_of(ml_u64 above, ml_u32 cap)
{
	return above < cap ? above : cap;
}

/*
 * Of every process: one that starts sends more than a ring holds. None takes more than a part of it until it has been
 * emptied, so that there is room for those who send little.
 */
#define ML_RING_SHARES 8
#define ML_RECORD_BYTES 512 /* beside the stack, about */

static __noinline bool ml_exceeds_share(ml_u64 process_number, ml_u64 stack_bytes)
{
	ml_u32 tgid = (ml_u32)process_number;
	struct ml_bpf_process *process = bpf_map_lookup_elem(&processes, &tgid);
	const struct ml_bpf_code *shared = ml_code();
	ml_u64 drains;

	if (!process || !shared)
		return false;
	drains = *(const volatile ml_u64 *)&shared->drains;
	if (process->drains != drains) {
		process->drains = drains;
		process->sent = 0;
	}
	if (process->sent > options.ring_bytes / ML_RING_SHARES)
		return true;
	__sync_fetch_and_add(&process->sent, stack_bytes + ML_RECORD_BYTES);
	return false;
}

/*
 * Of every process most keys are of one small block, of a program's start: none is sent of them. host/heap/omitted_stacks.py has
 * the same numbers.
 */
#define ML_FIRST_SYSTEM_WIDE 2
#define ML_LARGE_SYSTEM_WIDE 4096

static __always_inline bool ml_is_left_out_system_wide(struct ml_regs *regs, struct ml_thread *thread,
							const struct ml_bpf_block *block, struct ml_bpf_key *entry,
							ml_u64 live_objects)
{
	if (!options.every_stack && live_objects < ML_FIRST_SYSTEM_WIDE && block->size < ML_LARGE_SYSTEM_WIDE)
		return true;
	if ((live_objects < entry->next_due && !options.every_stack) ||
	    !ml_exceeds_share(thread->process, ml_slice_of(thread->stack_end - ML_SP(regs), options.stack_bytes)))
		return false;
	ml_sending_failed(entry);
	return true;
}

/* Is there no evidence to be had of this block, by what the session was told? */
static __always_inline bool ml_is_left_out(struct ml_regs *regs, struct ml_thread *thread, const struct ml_bpf_block *block,
					   ml_u64 address, struct ml_bpf_key *entry, ml_u64 live_objects)
{
	if (options.left_out == ML_BPF_COLD_LEFT_OUT)
		return ml_is_cold(entry);
	if (options.left_out == ML_BPF_SHARED_LEFT_OUT)
		return ml_is_left_out_system_wide(regs, thread, block, entry, live_objects);
	ml_bring_unknown(regs, thread, block, address, entry);
	return true;
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
	else if (!ml_is_worth_sending(entry, live_objects, ml_slice_of(thread->stack_end - ML_SP(regs), cap)))
		return;
	if (ml_send_evidence(regs, thread, block, address, entry->key, ml_evidence_flags(is_exact, due), cap))
		ml_sending_failed(entry);
}

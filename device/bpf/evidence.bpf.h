/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Evidence: the registers and the stack of an allocation, read when the allocator returns. */
#pragma once

#include "stack_key.bpf.h"

/*
 * Adds the return addresses in a stack slice that uretprobes replaced: those of pending calls, the innermost first. If there
 * are too many, the stack is right up to the first that is missing.
 */
static __noinline void ml_add_fixups(struct ml_evidence *evidence, struct ml_thread *thread, ml_u64 depth)
{
	ml_u16 n = 0;

	for (ml_u32 i = 0; i < ML_PENDING && i < depth; i++) {
		const struct ml_pending *pending = &thread->pending[(depth - 1 - i) & (ML_PENDING - 1)];

		if (n == ML_FIXUPS) {
			evidence->flags |= ML_EVIDENCE_FIXUPS_CUT;
			break;
		}
		evidence->fixups[n & (ML_FIXUPS - 1)].slot_address = pending->sp;
		evidence->fixups[n & (ML_FIXUPS - 1)].value = pending->return_address;
		n++;
	}
	evidence->n_fixups = n;
}

#ifdef ML_OLD_KERNEL
#include "perf_output.bpf.h"
#else
#include "ring_output.bpf.h"
#endif

/* One in 2^n allocations of a known key is sent again to verify the key. Exact keys err only by a stale rule. */
#define ML_VERIFY_SHIFT 10
#define ML_VERIFY_SHIFT_EXACT 16
/*
 * Evidence is due when a key's number of live blocks reaches 1, 2, 4, 8 …, which verifies a leak as it grows. For
 * partial keys it is due at each number up to ML_DUE_EACH, so that every block of a small leak has its own; for exact
 * keys at every 2^ML_DUE_STEP_EXACT-fold.
 */
#define ML_DUE_EACH 16
#define ML_DUE_STEP_EXACT 5

/* Whether this allocation of a known key is sent again. */
static __always_inline bool ml_verify_due(const struct ml_bpf_block *block, const struct ml_bpf_key *entry)
{
	ml_u64 random = block->sequence * 0x9e3779b97f4a7c15ull;

	return random >> (64 - ML_VERIFY_SHIFT) == 0 &&
	       (random >> (64 - ML_VERIFY_SHIFT_EXACT) == 0 || !(entry->flags & ML_BPF_KEY_EXACT));
}

/*
 * For known keys. Evidence that only verifies leaves half of the ring to the first evidence of others. Sets when
 * evidence is due next. stack_bytes: about what will be sent.
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

/* Evidence stays due for the next allocation. */
static __noinline void ml_sending_failed(struct ml_bpf_key *entry)
{
	if (entry)
		entry->next_due = 0;
	ml_count(ML_LOST_RING_FULL, 1);
}

/* The walk of an exact key has read every word that unwinding needs. To verify a key the whole stack is sent. */
static __always_inline ml_u64 ml_evidence_flags(bool is_exact, ml_u64 due)
{
	if (due)
		return ML_EVIDENCE_VERIFY;
	return is_exact && !options.every_stack && !options.whole_stacks ? ML_EVIDENCE_STACK_SPARSE : 0;
}

/* Without evidence: sends once for each key what rules can be learned from. */
static __always_inline void ml_bring_unknown(struct ml_regs *regs, struct ml_thread *thread, const struct ml_bpf_block *block,
					     ml_u64 address, struct ml_bpf_key *entry)
{
	if (!thread->walk.is_unknown || entry->next_due)
		return;
	entry->next_due = ~0ull;
	ml_send_evidence(regs, thread, block, address, entry->key, 0, options.stack_bytes);
}

/* above: bytes up to the stack's end, if known. */
static __always_inline ml_u64 ml_slice_of(ml_u64 above, ml_u32 cap)
{
	return above < cap ? above : cap;
}

/*
 * With --all, a starting process sends more than a ring holds. Each process may fill only a part of the ring until it
 * is drained, which leaves room for others.
 */
#define ML_RING_SHARES 8
#define ML_RECORD_BYTES 512 /* about, without the stack */

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
 * With --all, most keys have one small block from a program's start. They send none. host/heap/attribution.py has
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
	    !ml_exceeds_share(thread->process, ml_slice_of(thread->stack.end - ML_SP(regs), options.stack_bytes)))
		return false;
	ml_sending_failed(entry);
	return true;
}

/* Whether the session's options leave out this block's evidence. */
static __always_inline bool ml_is_left_out(struct ml_regs *regs, struct ml_thread *thread, const struct ml_bpf_block *block,
					   ml_u64 address, struct ml_bpf_key *entry, ml_u64 live_objects)
{
	if (options.left_out == ML_BPF_SHARED_LEFT_OUT)
		return ml_is_left_out_system_wide(regs, thread, block, entry, live_objects);
	ml_bring_unknown(regs, thread, block, address, entry);
	return true;
}

/* Sends evidence if it is due. `live_objects` includes this block. */
static __always_inline void ml_bring_evidence(struct ml_regs *regs, struct ml_thread *thread, const struct ml_bpf_block *block,
					      ml_u64 address, struct ml_bpf_key *entry, ml_u64 live_objects, ml_u32 cap)
{
	ml_u64 due = entry->next_due;
	bool is_exact = entry->flags & ML_BPF_KEY_EXACT; /* read once: values in maps are read anew after each store */

	if (live_objects < due && !options.every_stack && !ml_verify_due(block, entry))
		return;
	if (!due)
		entry->next_due = is_exact ? live_objects << ML_DUE_STEP_EXACT : live_objects + 1;
	else if (!ml_is_worth_sending(entry, live_objects, ml_slice_of(thread->stack.end - ML_SP(regs), cap)))
		return;
	if (ml_send_evidence(regs, thread, block, address, entry->key, ml_evidence_flags(is_exact, due), cap))
		ml_sending_failed(entry);
}

/* ---- single calls: all with --trace, and those of the region ledger, which the agent keeps ---- */

/* lost: the cause to count if the ring is full. */
static __always_inline void ml_send_event(struct ml_regs *regs, struct ml_event *event, ml_u64 process, ml_u32 lost)
{
	event->timestamp_ns = bpf_ktime_get_ns();
	event->pid = (ml_u32)process;
	event->tid = (ml_u32)bpf_get_current_pid_tgid();
	if (ml_output_event(regs, event))
		ml_count(lost, 1);
}

static __always_inline void ml_trace_alloc(struct ml_regs *regs, const struct ml_thread *thread,
					   const struct ml_pending *pending, ml_u64 address, ml_u64 key)
{
	bool is_pair = pending->function >= ML_FN_PAIR; /* only successful calls are reported */
	bool has_old = !is_pair && !options.rules[pending->function & (ML_FN_MAX - 1)].is_indirect;
	struct ml_event event = {
		.address = address,
		.size = pending->size,
		.key = key,
		.old_address = has_old ? ML_UNTAG(pending->pointer) : 0,
		.function = pending->function,
		.error = address || is_pair ? 0 : 12 /* ENOMEM */,
	};

	ml_send_event(regs, &event, thread->process, ML_LOST_EVENTS);
}

static __always_inline void ml_trace_free(struct ml_regs *regs, ml_u64 process, ml_u32 function, ml_u64 address, ml_u64 size)
{
	struct ml_event event = { .address = address, .size = size, .function = function };

	ml_send_event(regs, &event, process, ML_LOST_EVENTS);
}

static __always_inline void ml_send_region(struct ml_regs *regs, const struct ml_thread *thread, ml_u32 function,
					   ml_u64 address, ml_u64 size, ml_u64 old_address, ml_u64 key)
{
	struct ml_event event = {
		.address = address, .size = size, .key = key, .old_address = old_address, .function = function
	};

	ml_send_event(regs, &event, thread->process, ML_LOST_REGIONS);
}

// SPDX-License-Identifier: Apache-2.0
#include "preload/recorder/regions.h"

#include "preload/freestanding/clock.h"
#include "preload/recorder/evidence.h"
#include "preload/stacks/maps.h"
#include "preload/recorder/recorder.h"
#include "preload/recorder/signal_stack.h"
#include "preload/recorder/stack_bounds.h"
#include "preload/segment/ring.h"
#include "preload/stacks/stack_key.h"
#include "preload/stacks/python_frames.h"
#include "preload/freestanding/syscalls.h"
#include "preload/segment/thread.h"

#define SHARED_SLOT_TRIES 1000
#define CALLS_SLOTS 1024
#define EACH 16

/*
 * Marks a thread slot as being written to and returns it, or NULL. A signal handler that interrupted the recorder uses
 * the shared slot; the agent orders events by time. The wait for that slot is bounded, since an interrupted handler of
 * this thread may hold it.
 */
static struct ml_thread *enter(const struct ml_view *view, struct ml_thread *own)
{
	struct ml_thread *shared;

	if (ml_thread_enter(view, own))
		return own;
	shared = ml_thread_shared(view);
	for (int i = 0; i < SHARED_SLOT_TRIES; i++) {
		if (ml_thread_enter(view, shared))
			return shared;
		ML_SYSCALL0(sched_yield);
	}
	return NULL;
}

int ml_regions_take(ml_u64 return_address)
{
	const struct ml_view *view = ml_view_in_force();

	/* The settings first: without a ledger a forked child need not join the session here. */
	if (!(view->settings.flags & ML_SETTING_MMAP) || !ml_recorder_is_on())
		return 0;
	if (__atomic_load_n(&view->segment->maps_dirty, __ATOMIC_RELAXED))
		ml_maps_refresh(view, ml_thread_current(view));
	return !ml_maps_code_has(&ml_maps_allocator, return_address) && !ml_maps_code_has(&ml_maps_own, return_address);
}

/* Returns the slot whose ring was used. */
static struct ml_thread *send_event(const struct ml_view *view, struct ml_event event)
{
	struct ml_thread *thread = enter(view, ml_thread_current(view));
	int is_sent = 0;

	event.pid = view->segment->pid;
	event.tid = ml_own_tid();
	if (thread) {
		is_sent = ml_ring_send_event(view, thread, &event);
		ml_thread_leave(view, thread);
	}
	if (!is_sent)
		__atomic_fetch_add(&view->segment->lost[ML_LOST_REGIONS], 1, __ATOMIC_RELAXED);
	return is_sent ? thread : NULL;
}

void ml_regions_unmapped(ml_u64 address, ml_u64 size, ml_u64 before_ns)
{
	send_event(ml_view_in_force(),
		   (struct ml_event){
			   .timestamp_ns = before_ns, .address = ML_UNTAG(address), .size = size, .function = ML_FN_MUNMAP });
}

/*
 * The stack key mixed with the function. A key shared with blocks would lose its evidence when their blocks are freed.
 */
static ml_u64 region_key(const struct ml_view *view, const struct ml_caller *caller, enum ml_function function)
{
	ml_u64 key = ml_stack_key(view, ml_view_code_map(view), caller, &(struct ml_notes){ .thread = NULL });

	key ^= function * ML_THREAD_PHI << 2; /* keeps the bits that say what the key covers */
	return key ? key : 1;
}

/*
 * Whether a key's call brings evidence: its 1st to 16th, which may be of several stacks, then the 32nd, 64th … Two keys of one slot
 * drive each other out, and are sent more often.
 */
static int is_due(const struct ml_view *view, ml_u64 key)
{
	static struct {
		ml_u64 key, n;
	} calls[CALLS_SLOTS];
	ml_u64 n, own = key + (ml_u64)view->session * ML_THREAD_PHI; /* a later session has no evidence yet */
	size_t slot = (size_t)(own * ML_THREAD_PHI >> 32) % CALLS_SLOTS;

	if (__atomic_exchange_n(&calls[slot].key, own, __ATOMIC_RELAXED) != own)
		__atomic_store_n(&calls[slot].n, 0, __ATOMIC_RELAXED);
	n = __atomic_add_fetch(&calls[slot].n, 1, __ATOMIC_RELAXED);
	return n <= EACH || !(n & (n - 1));
}

void ml_regions_mapped(const struct ml_region_call *call)
{
	const struct ml_view *view = ml_view_in_force();
	struct ml_thread *thread = ml_thread_current(view);
	struct ml_caller caller = { .return_address = call->registers->return_address,
				    .stack_pointer = ml_registers_stack_pointer(call->registers),
				    .frame_pointer = ML_FRAME_POINTER(call->registers) };
	struct ml_entry block = { .size = call->size, .timestamp_ns = ml_clock_exact_ns() };
	struct ml_interrupted interrupted;
	ml_u64 key;

	if (thread->is_inside >= ML_INSIDE_OBJECTS) /* an arena: its blocks are recorded */
		return;
	ml_stack_bounds_find(view, thread, &caller);
	if (caller.frame_pointer - caller.stack_pointer >= caller.readable_end - caller.stack_pointer)
		caller.frame_pointer = 0;
	caller.python = ml_python_hash(view, &caller);
	ml_signal_stack_find(view, thread, &caller, &interrupted);
	key = region_key(view, &caller, call->function);
	thread = send_event(view, (struct ml_event){ .timestamp_ns = block.timestamp_ns,
						     .address = ML_UNTAG(call->address),
						     .size = call->size,
						     .key = key,
						     .old_address = call->old_address,
						     .function = call->function });
	if (!thread || view->settings.flags & ML_SETTING_NO_EVIDENCE || !is_due(view, key))
		return;
	block.sequence = ml_thread_next_sequence(view, thread);
	ml_evidence_send(view, thread,
			 &(struct ml_evidence_call){ .function = call->function,
						     .address = ML_UNTAG(call->address),
						     .key = key,
						     .block = &block, /* entry 0: the key has no counters */
						     .registers = call->registers,
						     .caller = &caller },
			 0);
}

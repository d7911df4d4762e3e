// SPDX-License-Identifier: Apache-2.0
#include "preload/recorder/recorder.h"

#include "preload/freestanding/atomics.h"
#include "preload/freestanding/clock.h"
#include "preload/recorder/evidence.h"
#include "preload/segment/keys.h"
#include "preload/stacks/maps.h"
#include "preload/stacks/python_frames.h"
#include "preload/segment/ring.h"
#include "preload/recorder/sampler.h"
#include "preload/recorder/stack_bounds.h"
#include "preload/recorder/stack_id.h"
#include "preload/segment/table.h"

static void count_lost(const struct ml_view *view, enum ml_lost cause)
{
	ml_add(&view->segment->lost[cause], 1);
}

/* The dynamic linker allocates while it loads and unloads modules. The next caller outside it reads the maps anew. */
static inline void watch_linker(const struct ml_view *view, ml_u64 return_address)
{
	if (unlikely(is_linker(return_address)))
		__atomic_store_n(&view->segment->maps_dirty, ML_MAPS_DIRTY, __ATOMIC_RELAXED);
}

int ml_recorder_skips_alloc(ml_u64 size, ml_u64 return_address)
{
	struct ml_thread *thread;

	if (unlikely(ml_recorder_state_now() != ML_RECORDER_ON || is_linker(return_address)))
		return 0;
	thread = ml_thread_current(ml_view_in_force());
	return !thread->is_inside && ml_sampler_skips(thread, size);
}

int ml_recorder_skips_free(const void *pointer, ml_u64 return_address)
{
	return ml_recorder_state_now() == ML_RECORDER_ON && !is_linker(return_address) &&
	       ml_table_excludes(ml_view_in_force(), ML_UNTAG(pointer));
}

static void count_alloc(const struct ml_view *view, ml_u32 number, ml_u64 size)
{
	if (unlikely(!number))
		count_lost(view, ML_LOST_KEYS_FULL);
	ml_key_count_alloc(view, number, size);
}

static ml_u32 key_of(const struct ml_view *view, const struct ml_entry *block)
{
	return block->key_index & (view->settings.n_keys - 1);
}

static void count_free(const struct ml_view *view, const struct ml_entry *block)
{
	ml_key_count_free(view, key_of(view, block), block->size);
}

/* --trace and --record-all: the call itself, with the exact time. */
static void send_event(const struct ml_view *view, enum ml_function function, ml_u64 address, ml_u64 old,
		       const struct ml_entry *block)
{
	struct ml_thread *thread = ml_thread_current(view);
	const struct ml_event event = {
		.timestamp_ns = ml_clock_exact_ns(),
		.address = address,
		.size = block->size,
		.key = view->keys[key_of(view, block)].key,
		.old_address = old,
		.pid = view->segment->pid,
		.tid = ml_thread_tid(view, thread),
		.function = function,
	};

	if (!ml_thread_enter(view, thread)) {
		count_lost(view, ML_LOST_EVENTS);
		return;
	}
	if (!ml_ring_send_event(view, thread, &event))
		count_lost(view, ML_LOST_EVENTS);
	ml_thread_leave(view, thread);
}

void ml_recorder_freed(enum ml_function function, void *pointer, const struct ml_entry *block)
{
	const struct ml_view *view = ml_view_in_force();

	if (unlikely(block->session != view->session))
		return; /* claimed under an earlier session */
	count_free(view, block);
	if (unlikely(view->settings.flags & ML_SETTING_EVENTS) && function)
		send_event(view, function, ML_UNTAG(pointer), 0, block);
}

static void insert(const struct ml_view *view, struct ml_thread *thread, ml_u64 *shadow, ml_u64 address, struct ml_entry *block)
{
	struct ml_entry old;

	switch (ml_table_insert(view, thread, shadow, address, block, &old)) {
	case ML_TABLE_INSERTED: break;
	case ML_TABLE_REPLACED:
		count_lost(view, ML_LOST_MISSED_FREE);
		count_free(view, &old);
		break;
	case ML_TABLE_FULL: count_lost(view, ML_LOST_TABLE_FULL); break;
	}
}

/* The allocator's code is unknown until the session has read the maps. */
static __attribute__((noinline)) int is_within_allocator(const struct ml_view *view, struct ml_thread *thread,
							 ml_u64 return_address)
{
	if (!view->code_maps[view->segment->current_map].revision)
		ml_maps_refresh(view, thread);
	/* After a tail call inside the allocator the return address is ours. */
	return ml_maps_code_has(&ml_maps_allocator, return_address) || ml_maps_code_has(&ml_maps_own, return_address);
}

static inline int is_internal(const struct ml_view *view, struct ml_thread *thread, ml_u64 return_address)
{
	return unlikely(thread->is_inside) &&
	       (thread->is_inside >= ML_INSIDE_OBJECTS || is_within_allocator(view, thread, return_address));
}

/* shadow: the result of ml_table_expect(). */
static inline __attribute__((always_inline)) void record(const struct ml_view *view, struct ml_thread *thread,
							 enum ml_function function, ml_u64 address, ml_u64 *shadow, ml_u64 size,
							 ml_u64 old, const struct ml_registers *registers)
{
	struct ml_caller caller = {
		.return_address = registers->return_address,
		.stack_pointer = ml_registers_stack_pointer(registers),
		.frame_pointer = ML_FRAME_POINTER(registers),
	};
	ml_u32 was_recording = thread->is_recording; /* in a signal handler that interrupted another call */
	struct ml_interrupted interrupted; /* written where it is needed only */
	const struct ml_code_map *map;
	struct ml_entry block;
	struct stack_id id;
	ml_u64 timestamp_ns;

	/*
	 * Set before is_over is read. The agent sets is_over, makes all processors pass a barrier (membarrier(2)) and
	 * then reads this word. So either the agent sees the call and waits, or the call sees that the session is over.
	 */
	__atomic_store_n(&thread->is_recording, 1, __ATOMIC_RELAXED);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (unlikely(__atomic_load_n(&view->segment->is_over, __ATOMIC_RELAXED) != ML_SESSION_RUNS)) {
		__atomic_store_n(&thread->is_recording, was_recording, __ATOMIC_RELEASE);
		return;
	}
	ml_stack_bounds_find(view, thread, &caller);
	/* Without frame pointers the register holds any value. Only an address within the stack can be a frame. */
	if (unlikely((view->settings.flags & (ML_SETTING_NO_STACK | ML_SETTING_CHAIN_BY_CFI)) == ML_SETTING_NO_STACK))
		caller.frame_pointer = ML_CHAIN_POINTER(registers);
	else if (caller.frame_pointer - caller.stack_pointer >= caller.readable_end - caller.stack_pointer)
		caller.frame_pointer = 0;
	caller.python = ml_python_hash(view, &caller);
	map = current_map(view, thread, caller.return_address, &timestamp_ns);
	id = begin_lookup(view, thread, map, &caller, &interrupted);
	if (unlikely(id.unknown))
		id = lookup_again(view, thread, &id, &caller, &interrupted, &map, &timestamp_ns);
	count_alloc(view, id.number, size);
	block = (struct ml_entry){
		.size = size,
		.timestamp_ns = timestamp_ns,
		.key_index = id.number,
		.tid = ml_thread_tid(view, thread),
		.function = function,
	};
	insert(view, thread, shadow, address, &block);
	if (unlikely(view->settings.flags & ML_SETTING_EVENTS))
		send_event(view, function, address & ML_PAIR_HANDLE_MASK, old, &block);
	ml_evidence_send_if_due(view, thread,
				&(struct ml_evidence_call){
					.function = function,
					.address = address & ML_PAIR_HANDLE_MASK,
					.key = id.key,
					.block = &block,
					.registers = registers,
					.caller = &caller,
					.memo = id.memo,
				});
	end_lookup(thread, &id);
	__atomic_store_n(&thread->is_recording, was_recording, __ATOMIC_RELEASE);
}

void ml_recorder_alloc(enum ml_function function, void *pointer, ml_u64 size, void *old, const struct ml_registers *registers)
{
	const struct ml_view *view = ml_view_in_force();
	struct ml_thread *thread = ml_thread_current(view);

	if (size < view->settings.min_size || size > view->settings.max_size ||
	    unlikely(view->settings.flags & ML_SETTING_NO_HEAP) || is_internal(view, thread, registers->return_address))
		return;
	watch_linker(view, registers->return_address);
	if (view->settings.sample_bytes && !ml_sampler_takes(thread, view->settings.sample_bytes, size))
		return;
	record(view, thread, function, ML_UNTAG(pointer), ml_table_expect(view, ML_UNTAG(pointer)), size, ML_UNTAG(old),
	       registers);
}

void ml_recorder_acquire(enum ml_function function, ml_u64 address, ml_u64 size, const struct ml_pair *rule,
			 const struct ml_registers *registers)
{
	const struct ml_view *view = ml_view_in_force();
	struct ml_thread *thread = ml_thread_current(view);
	struct ml_entry old;

	/* Handles may be small, adjacent numbers, whose slots the table checks too late. */
	if (!ml_pair_counts_references(rule) && ml_table_remove(view, thread, address, &old)) {
		count_free(view, &old);
		if (!rule->replaces)
			count_lost(view, ML_LOST_MISSED_FREE);
	}
	if (size >= view->settings.min_size && size <= view->settings.max_size)
		record(view, thread, function, address, NULL, size, 0, registers);
}

static void count_untracked(const struct ml_view *view, ml_u64 return_address)
{
	struct ml_thread *thread = ml_thread_current(view);

	if (!view->settings.sample_bytes && !view->settings.min_size && view->settings.max_size == ~0ull &&
	    !(view->settings.flags & ML_SETTING_NO_HEAP) && !is_internal(view, thread, return_address))
		ml_add(&thread->untracked_frees, 1);
}

typedef int take(const struct ml_view *view, struct ml_thread *thread, ml_u64 address, struct ml_entry *entry);

static inline __attribute__((always_inline)) int take_out(take *take, void *pointer, ml_u64 return_address,
							  struct ml_entry *block)
{
	const struct ml_view *view = ml_view_in_force();

	watch_linker(view, return_address);
	if (likely(take(view, ml_thread_current(view), ML_UNTAG(pointer), block))) {
		block->session = view->session;
		return 1;
	}
	count_untracked(view, return_address);
	return 0;
}

int ml_recorder_claim(void *pointer, ml_u64 return_address, struct ml_entry *block)
{
	return take_out(ml_table_claim, pointer, return_address, block);
}

int ml_recorder_remove(void *pointer, ml_u64 return_address, struct ml_entry *block)
{
	return take_out(ml_table_remove, pointer, return_address, block);
}

int ml_recorder_release_if_held(ml_u64 address, struct ml_entry *block)
{
	const struct ml_view *view = ml_view_in_force();
	int was_held = ml_table_claim(view, ml_thread_current(view), address, block);

	block->session = view->session;
	return was_held;
}

int ml_recorder_release(ml_u64 address, struct ml_entry *block)
{
	const struct ml_view *view = ml_view_in_force();
	int was_held = ml_recorder_release_if_held(address, block);

	if (!was_held && !view->settings.min_size && view->settings.max_size == ~0ull)
		ml_add(&ml_thread_current(view)->untracked_frees, 1);
	return was_held;
}

void ml_recorder_restore(ml_u64 address, const struct ml_entry *block)
{
	const struct ml_view *view = ml_view_in_force();
	struct ml_entry again = *block;

	if (block->session == view->session)
		insert(view, ml_thread_current(view), NULL, address, &again);
}

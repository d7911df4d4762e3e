// SPDX-License-Identifier: Apache-2.0
#include "recorder.h"

#include <stddef.h>

#include "atomics.h"
#include "clock.h"
#include "connect.h"
#include "evidence.h"
#include "forks.h"
#include "frame_resolve.h"
#include "keys.h"
#include "maps.h"
#include "memo.h"
#include "ring.h"
#include "sampler.h"
#include "stack_key.h"
#include "syscalls.h"
#include "table.h"
#include "thread.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define UNKNOWN_PAUSE_NS 1000000ull
#define UNKNOWN_PAUSE_MAX_NS 1000000000ull

static struct ml_view view;

static int never = ML_RECORDER_NEVER;
int *ml_recorder_state = &never;
int ml_recorder_is_sampling;

static void count_lost(enum ml_lost cause)
{
	ml_add(&view.segment->lost[cause], 1);
}

void ml_recorder_start(char *const *environment)
{
	int *state;

	if (ml_recorder_state != &never || !ml_connect_read_environment(environment))
		return;
	state = ml_forks_watched_word();
	if (!state || ml_connect_segment(&view))
		return;
	ml_recorder_is_sampling = view.settings.sample_bytes != 0;
	*state = ML_RECORDER_ON;
	__atomic_store_n(&ml_recorder_state, state, __ATOMIC_RELEASE);
}

int ml_recorder_after_fork(void)
{
	*ml_recorder_state = ML_RECORDER_NEVER;
	if (!(view.settings.flags & ML_SETTING_FOLLOW)) {
		__atomic_fetch_add(&view.segment->n_children, 1, __ATOMIC_RELAXED);
		return 0;
	}
	ml_maps_forget();
	ml_frame_resolve_forget();
	if (ml_connect_segment(&view))
		return 0;
	*ml_recorder_state = ML_RECORDER_ON;
	return 1;
}

const struct ml_view *ml_recorder_view(void)
{
	return &view;
}

int ml_recorder_is_following(void)
{
	return ml_recorder_is_on() && (view.settings.flags & ML_SETTING_FOLLOW);
}

int ml_recorder_is_own_process(void)
{
	return ml_recorder_is_on() && (ml_u32)ML_SYSCALL0(getpid) == view.segment->pid;
}

static inline int is_linker(ml_u64 return_address)
{
	return return_address - ml_maps_linker_low < ml_maps_linker_bytes;
}

/* The dynamic linker allocates while it loads and unloads: the next caller from elsewhere finds new maps. */
static inline void watch_linker(ml_u64 return_address)
{
	if (unlikely(is_linker(return_address)))
		__atomic_store_n(&view.segment->maps_dirty, ML_MAPS_DIRTY, __ATOMIC_RELAXED);
}

int ml_recorder_skips_alloc(ml_u64 size, ml_u64 return_address)
{
	struct ml_thread *thread;

	if (unlikely(*(volatile int *)ml_recorder_state != ML_RECORDER_ON || is_linker(return_address)))
		return 0;
	thread = ml_thread_current(&view);
	return !thread->is_inside && ml_sampler_skips(thread, size);
}

int ml_recorder_skips_free(const void *pointer, ml_u64 return_address)
{
	return *(volatile int *)ml_recorder_state == ML_RECORDER_ON && !is_linker(return_address) &&
	       ml_table_excludes(&view, ML_UNTAG(pointer));
}

/*
 * When the block was allocated, and the map that names it. The clock is read before the maps are found clean, so that
 * the time is before any later map's; and as of the last tick it may be before the map's own.
 */
static inline const struct ml_code_map *enter_map(struct ml_thread *thread, ml_u64 return_address, ml_u64 *timestamp_ns)
{
	const struct ml_code_map *map;

	*timestamp_ns = ml_clock_coarse_ns();
	if (unlikely(__atomic_load_n(&view.segment->maps_dirty, __ATOMIC_ACQUIRE)) && !is_linker(return_address))
		ml_maps_refresh(&view, thread);
	map = &view.code_maps[__atomic_load_n(&view.segment->current_map, __ATOMIC_ACQUIRE) & 1];
	if (unlikely(*timestamp_ns < map->timestamp_ns))
		*timestamp_ns = map->timestamp_ns;
	return map;
}

/* What a stack is called; until leave_name() a handler of this thread does without memos. */
struct name {
	ml_u64 key;
	ml_u32 number; /* of the key's entry */
	struct ml_memo *memo;
	int meets_unknown; /* the stack leads to code that the map does not have */
};

static struct name enter_name(struct ml_thread *thread, const struct ml_code_map *map, const struct ml_caller *caller)
{
	struct name name = { 0, 0, NULL, 0 };
	int is_same;

	/* The first slot is shared by threads; in a handler the interrupted call may be at the same memo. */
	if (unlikely(thread == view.threads || thread->is_naming)) {
		name.key = ml_stack_key(&view, map, caller, &(struct ml_notes){ NULL, NULL, NULL });
		name.number = ml_keys_find(&view, name.key);
		return name;
	}
	thread->is_naming = 1;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	name.memo = ml_memo_find(&view, thread, map, caller, &is_same);
	if (!is_same) {
		name.key = ml_stack_key(&view, map, caller, &(struct ml_notes){ thread, name.memo, &name.meets_unknown });
		ml_stack_remember(name.memo, caller, name.key, ml_keys_find(&view, name.key));
		ml_memo_draw_outline(thread, name.memo, view.keys[name.memo->key_number].alloc_objects != 0);
	}
	name.key = name.memo->key;
	name.number = name.memo->key_number;
	return name;
}

static inline void leave_name(struct ml_thread *thread, const struct name *name)
{
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (likely(name->memo != NULL))
		thread->is_naming = 0;
}

/*
 * Not every linker allocates by malloc() what announces a library: bionic's does not. Where reading the maps again
 * explains nothing, the next look is put off.
 */
static struct name name_anew(struct ml_thread *thread, const struct name *old, const struct ml_caller *caller,
			     const struct ml_code_map **map, ml_u64 *timestamp_ns)
{
	static ml_u64 next_ns, pause_ns; /* who races looks once too often */
	ml_u64 pause = __atomic_load_n(&pause_ns, __ATOMIC_RELAXED);
	struct name name;

	if (*timestamp_ns < __atomic_load_n(&next_ns, __ATOMIC_RELAXED))
		return *old;
	leave_name(thread, old);
	__atomic_store_n(&view.segment->maps_dirty, ML_MAPS_DIRTY, __ATOMIC_RELAXED);
	*map = enter_map(thread, caller->return_address, timestamp_ns);
	name = enter_name(thread, *map, caller);
	pause = !name.meets_unknown ? 0 : pause < UNKNOWN_PAUSE_MAX_NS ? 2 * pause + UNKNOWN_PAUSE_NS : pause;
	__atomic_store_n(&pause_ns, pause, __ATOMIC_RELAXED);
	__atomic_store_n(&next_ns, *timestamp_ns + pause, __ATOMIC_RELAXED);
	return name;
}

static void count_alloc(ml_u32 number, ml_u64 size)
{
	struct ml_key *key = &view.keys[number];

	if (unlikely(!number))
		count_lost(ML_LOST_KEYS_FULL);
	ml_add(&key->alloc_objects, 1);
	ml_add(&key->alloc_bytes, size);
}

static struct ml_key *key_of(const struct ml_entry *block)
{
	return &view.keys[block->key_index & (view.settings.n_keys - 1)];
}

static void count_free(const struct ml_entry *block)
{
	struct ml_key *key = key_of(block);

	ml_add(&key->free_objects, 1);
	ml_add(&key->free_bytes, block->size);
}

/* --trace and --record-all: the call itself, with the exact time. */
static void send_event(enum ml_function function, ml_u64 address, ml_u64 old, const struct ml_entry *block)
{
	struct ml_thread *thread = ml_thread_current(&view);
	struct ml_event *event;

	if (!ml_thread_enter(&view, thread)) {
		count_lost(ML_LOST_EVENTS);
		return;
	}
	event = ml_ring_reserve_patiently(&view, thread, sizeof(*event));
	if (!event) {
		count_lost(ML_LOST_EVENTS);
		ml_thread_leave(&view, thread);
		return;
	}
	*event = (struct ml_event){
		.timestamp_ns = ml_clock_exact_ns(),
		.address = address,
		.size = block->size,
		.key = key_of(block)->key,
		.old_address = old,
		.pid = view.segment->pid,
		.tid = thread->tid,
		.function = function,
	};
	ml_ring_commit(&view, thread, ML_RING_EVENT, sizeof(*event));
	ml_thread_leave(&view, thread);
}

void ml_recorder_freed(enum ml_function function, void *pointer, const struct ml_entry *block)
{
	count_free(block);
	if (unlikely(view.settings.flags & ML_SETTING_EVENTS) && function)
		send_event(function, ML_UNTAG(pointer), 0, block);
}

static void insert(struct ml_thread *thread, ml_u64 *place, ml_u64 address, struct ml_entry *block)
{
	struct ml_entry old;

	switch (ml_table_insert(&view, thread, place, address, block, &old)) {
	case ML_TABLE_INSERTED:
		break;
	case ML_TABLE_REPLACED:
		count_lost(ML_LOST_MISSED_FREE);
		count_free(&old);
		break;
	case ML_TABLE_FULL:
		count_lost(ML_LOST_TABLE_FULL);
		break;
	}
}

void ml_recorder_enter_original(void)
{
	ml_thread_current(&view)->is_inside++;
}

void ml_recorder_leave_original(void)
{
	ml_thread_current(&view)->is_inside--;
}

static inline int is_internal(const struct ml_thread *thread, ml_u64 return_address)
{
	/* A tail call inside the allocator leaves our own return address. */
	return unlikely(thread->is_inside) && (ml_maps_code_has(&ml_maps_allocator, return_address) ||
					       ml_maps_code_has(&ml_maps_own, return_address));
}

void ml_recorder_alloc(enum ml_function function, void *pointer, ml_u64 size, void *old,
		       const struct ml_registers *registers)
{
	struct ml_thread *thread = ml_thread_current(&view);
	struct ml_caller caller = {
		.return_address = registers->return_address,
		.stack_pointer = ml_registers_stack_pointer(registers),
		.frame_pointer = ML_FRAME_POINTER(registers),
	};
	const struct ml_code_map *map;
	struct ml_entry block;
	struct name name;
	ml_u64 timestamp_ns, *place;

	if (size < view.settings.min_size || size > view.settings.max_size ||
	    is_internal(thread, caller.return_address))
		return;
	watch_linker(caller.return_address);
	if (view.settings.sample_bytes && !ml_sampler_takes(thread, view.settings.sample_bytes, size))
		return;
	place = ml_table_expect(&view, ML_UNTAG(pointer));
	ml_evidence_find_stack(&view, thread, &caller);
	/* Without frame pointers the register holds anything: only an address of the stack says where frames are. */
	if (caller.frame_pointer - caller.stack_pointer >= caller.readable_end - caller.stack_pointer)
		caller.frame_pointer = 0;
	map = enter_map(thread, caller.return_address, &timestamp_ns);
	name = enter_name(thread, map, &caller);
	if (unlikely(name.meets_unknown))
		name = name_anew(thread, &name, &caller, &map, &timestamp_ns);
	count_alloc(name.number, size);
	block = (struct ml_entry){
		.size = size,
		.timestamp_ns = timestamp_ns,
		.key_index = name.number,
		.tid = thread->tid,
		.function = function,
	};
	insert(thread, place, ML_UNTAG(pointer), &block);
	if (unlikely(view.settings.flags & ML_SETTING_EVENTS))
		send_event(function, ML_UNTAG(pointer), ML_UNTAG(old), &block);
	ml_evidence_send_if_due(&view, thread, &(struct ml_evidence_call){
		.function = function,
		.address = ML_UNTAG(pointer),
		.key = name.key,
		.block = &block,
		.registers = registers,
		.caller = &caller,
		.memo = name.memo,
	});
	leave_name(thread, &name);
}

static void count_untracked(ml_u64 return_address)
{
	struct ml_thread *thread = ml_thread_current(&view);

	if (!view.settings.sample_bytes && !view.settings.min_size && view.settings.max_size == ~0ull &&
	    !is_internal(thread, return_address))
		ml_add(&thread->untracked_frees, 1);
}

int ml_recorder_claim(void *pointer, ml_u64 return_address, struct ml_entry *block)
{
	watch_linker(return_address);
	if (likely(ml_table_claim(&view, ml_thread_current(&view), ML_UNTAG(pointer), block)))
		return 1;
	count_untracked(return_address);
	return 0;
}

int ml_recorder_remove(void *pointer, ml_u64 return_address, struct ml_entry *block)
{
	watch_linker(return_address);
	if (likely(ml_table_remove(&view, ml_thread_current(&view), ML_UNTAG(pointer), block)))
		return 1;
	count_untracked(return_address);
	return 0;
}

void ml_recorder_give_back(void *pointer, const struct ml_entry *block)
{
	struct ml_entry again = *block;

	insert(ml_thread_current(&view), NULL, ML_UNTAG(pointer), &again);
}

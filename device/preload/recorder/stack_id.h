/* SPDX-License-Identifier: Apache-2.0 */
/* The stack of a call as the recorder identifies it: time, code map and key. A part of recorder.c. */
#pragma once

#include "preload/freestanding/atomics.h"
#include "preload/freestanding/clock.h"
#include "preload/segment/keys.h"
#include "preload/stacks/maps.h"
#include "preload/stacks/memo.h"
#include "preload/recorder/recorder_session.h"
#include "preload/recorder/signal_stack.h"
#include "preload/stacks/stack_key.h"
#include "preload/stacks/unexplained.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

static inline int is_linker(ml_u64 return_address)
{
	return return_address - ml_read(&ml_maps_linker_low) < ml_read(&ml_maps_linker_bytes);
}

/*
 * The time of the call and the code map for it. The clock is read before maps_dirty, so that the time precedes any
 * later map's. A coarse time may also precede the map's own; then the map's is used.
 */
static inline const struct ml_code_map *current_map(const struct ml_view *view, struct ml_thread *thread, ml_u64 return_address,
						    ml_u64 *timestamp_ns)
{
	const struct ml_code_map *map;

	*timestamp_ns = ml_clock_coarse_ns();
	if (unlikely(*timestamp_ns > __atomic_load_n(&view->segment->next_check_ns, __ATOMIC_RELAXED)))
		ml_recorder_check_agent(view, *timestamp_ns);
	if (unlikely(__atomic_load_n(&view->segment->maps_dirty, __ATOMIC_ACQUIRE)) && !is_linker(return_address))
		ml_maps_refresh(view, thread);
	map = ml_view_code_map(view);
	if (unlikely(*timestamp_ns < map->timestamp_ns))
		*timestamp_ns = map->timestamp_ns;
	return map;
}

/* Result of a look-up. Until end_lookup() a handler of this thread uses no memos. */
struct stack_id {
	ml_u64 key;
	ml_u32 number; /* index of the key's entry */
	struct ml_memo *memo;
	ml_u64 unknown; /* an address in the stack outside the map's code; 0 = none */
	ml_u32 revision; /* of that map */
};

/* interrupted: room for what the caller has interrupted, if it is a handler on an alternate stack. */
static inline struct stack_id begin_lookup(const struct ml_view *view, struct ml_thread *thread, const struct ml_code_map *map,
					   struct ml_caller *caller, struct ml_interrupted *interrupted)
{
	struct stack_id id = { 0, 0, NULL, 0, 0 };
	int is_same;

	/* Threads share the first slot, and a handler may have interrupted a change of the same memo. */
	if (unlikely(thread == view->threads || thread->is_in_lookup)) {
		ml_signal_stack_find(view, thread, caller, interrupted);
		id.key = ml_stack_key(view, map, caller, &(struct ml_notes){ .thread = NULL });
		id.number = ml_keys_find(view, id.key);
		return id;
	}
	thread->is_in_lookup = 1;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	id.memo = ml_memo_find(view, thread, map, caller, &is_same);
	if (!is_same) {
		ml_signal_stack_find(view, thread, caller, interrupted); /* there, no stack has a memo */
		id.revision = map->revision;
		id.key = ml_stack_key(view, map, caller, &(struct ml_notes){ thread, id.memo, &id.unknown, NULL });
		ml_stack_remember(id.memo, caller, id.key, ml_keys_find(view, id.key));
		ml_memo_draw_outline(thread, id.memo, ml_read(&view->keys[id.memo->key_number].alloc_objects) != 0);
	}
	id.key = id.memo->key;
	id.number = id.memo->key_number;
	return id;
}

static inline void end_lookup(struct ml_thread *thread, const struct stack_id *id)
{
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (likely(id->memo != NULL))
		thread->is_in_lookup = 0;
}

static inline int is_of_current_map(const struct ml_view *view, const struct stack_id *id)
{
	return !__atomic_load_n(&view->segment->maps_dirty, __ATOMIC_ACQUIRE) &&
	       ml_view_code_map(view)->revision == id->revision;
}

/*
 * For a stack with unknown code: bionic's linker does not announce libraries by malloc(). Uses maps that another thread
 * has read meanwhile, or reads them unless that failed a moment ago.
 */
static inline struct stack_id lookup_again(const struct ml_view *view, struct ml_thread *thread, const struct stack_id *old,
					   struct ml_caller *caller, struct ml_interrupted *interrupted,
					   const struct ml_code_map **map, ml_u64 *timestamp_ns)
{
	int is_put_off = ml_unexplained_is_put_off(old->unknown, *timestamp_ns);
	struct stack_id id;

	if (is_put_off && is_of_current_map(view, old))
		return *old;
	end_lookup(thread, old);
	if (!is_put_off)
		__atomic_store_n(&view->segment->maps_dirty, ML_MAPS_DIRTY, __ATOMIC_RELAXED);
	*map = current_map(view, thread, caller->return_address, timestamp_ns);
	id = begin_lookup(view, thread, *map, caller, interrupted);
	if (!is_put_off)
		ml_unexplained_note(id.unknown, *timestamp_ns);
	return id;
}

// SPDX-License-Identifier: Apache-2.0
#include "preload/segment/shadow.h"

#include "preload/freestanding/atomics.h"
#include "preload/freestanding/syscalls.h"
#include "preload/segment/thread.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; on older kernels it fails, and pages are faulted in one by one */
#endif

#define FRESH_STEP 64u /* rests taken for one thread at a time */

/* ---- words -------------------------------------------------------------------------------------------- */

ml_u64 *ml_shadow_find_on(const struct ml_view *view, ml_u64 address)
{
	ml_u64 chunk = address >> ML_SHADOW_CHUNK_SHIFT;
	ml_u32 first = ml_shadow_first(view, chunk);

	for (ml_u32 i = 0; i < ML_SHADOW_PROBES; i++) {
		ml_u32 index = (first + i) & (view->settings.n_chunks - 1);
		ml_u64 there = __atomic_load_n(&view->chunk_numbers[index], __ATOMIC_ACQUIRE);

		if (there == chunk + 1)
			return ml_shadow_at(view, index, address);
		if (!there)
			break;
	}
	return NULL;
}

/* A growing heap will use all of the chunk; a fault for each page would cost several times as much. */
static void populate(const struct ml_view *view, ml_u32 index, ml_u64 chunk)
{
	if (ml_shadow_find(view, (chunk - 1) << ML_SHADOW_CHUNK_SHIFT))
		ML_SYSCALL3(madvise, &view->chunks[index], sizeof(view->chunks[index]), MADV_POPULATE_WRITE);
}

ml_u64 *ml_shadow_find_or_make(const struct ml_view *view, ml_u64 address)
{
	ml_u64 *word = ml_shadow_find(view, address);
	ml_u64 chunk = address >> ML_SHADOW_CHUNK_SHIFT;
	ml_u32 first = ml_shadow_first(view, chunk);

	if (__builtin_expect(word != NULL, 1) || !view->settings.n_chunks)
		return word;
	for (ml_u32 i = 0; i < ML_SHADOW_PROBES; i++) {
		ml_u32 index = (first + i) & (view->settings.n_chunks - 1);
		ml_u64 there = 0;

		if (__atomic_compare_exchange_n(&view->chunk_numbers[index], &there, chunk + 1, 0, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			populate(view, index, chunk);
		else if (there != chunk + 1)
			continue;
		return ml_shadow_at(view, index, address);
	}
	return NULL;
}

/* ---- rests -------------------------------------------------------------------------------------------- */

/* Puts a chain of rests in front of the shared one. */
static void share(const struct ml_view *view, ml_u32 first, ml_u32 last)
{
	ml_u64 *head = &view->segment->free_rests;
	ml_u64 old = __atomic_load_n(head, __ATOMIC_RELAXED), new;

	do {
		__atomic_store_n(&view->rests[last].n_live, (ml_u32)old, __ATOMIC_RELAXED);
		new = ((old >> 32) + 1) << 32 | (first + 1);
	} while (!__atomic_compare_exchange_n(head, &old, new, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

/* The count of changes detects that the first was taken and returned meanwhile (ABA). */
static __attribute__((noinline)) ml_u32 take_shared(const struct ml_view *view)
{
	ml_u64 *head = &view->segment->free_rests;
	ml_u64 old = __atomic_load_n(head, __ATOMIC_ACQUIRE), new;

	do {
		ml_u32 next;

		if (!(ml_u32)old)
			return ML_SHADOW_NO_REST;
		next = (ml_u32)__atomic_load_n(&view->rests[(ml_u32)old - 1].n_live, __ATOMIC_RELAXED);
		new = ((old >> 32) + 1) << 32 | next;
	} while (!__atomic_compare_exchange_n(head, &old, new, 0, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE));
	return (ml_u32)old - 1;
}

/* Takes unused rests; returns how many. */
static __attribute__((noinline)) ml_u32 take_fresh(const struct ml_view *view, struct ml_thread *thread)
{
	ml_u32 n_rests = ml_shadow_n_rests(&view->settings);
	ml_u64 first;

	if (__atomic_load_n(&view->segment->n_rests_used, __ATOMIC_RELAXED) + FRESH_STEP > n_rests)
		return 0;
	first = __atomic_fetch_add(&view->segment->n_rests_used, FRESH_STEP, __ATOMIC_RELAXED);
	if (first + FRESH_STEP > n_rests)
		return 0;
	for (ml_u32 i = 0; i < FRESH_STEP; i++)
		thread->free_rests[i] = (ml_u32)first + FRESH_STEP - 1 - i;
	return FRESH_STEP;
}

static ml_u32 take_any(const struct ml_view *view, struct ml_thread *thread)
{
	ml_u32 number = thread->n_free_rests ? thread->free_rests[--thread->n_free_rests] : take_shared(view);

	if (number != ML_SHADOW_NO_REST)
		return number;
	thread->n_free_rests = take_fresh(view, thread);
	return thread->n_free_rests ? thread->free_rests[--thread->n_free_rests] : ML_SHADOW_NO_REST;
}

/* Keeps the upper half, which is warm in the caches. */
static __attribute__((noinline)) void share_half(const struct ml_view *view, struct ml_thread *thread)
{
	ml_u32 half = ML_THREAD_RESTS / 2;

	for (ml_u32 i = 0; i + 1 < half; i++)
		__atomic_store_n(&view->rests[thread->free_rests[i]].n_live, thread->free_rests[i + 1] + 1ull,
				 __ATOMIC_RELAXED);
	share(view, thread->free_rests[0], thread->free_rests[half - 1]);
	for (ml_u32 i = 0; i < half; i++)
		thread->free_rests[i] = thread->free_rests[half + i];
	thread->n_free_rests = half;
}

static void keep(const struct ml_view *view, struct ml_thread *thread, ml_u32 number)
{
	if (thread->n_free_rests == ML_THREAD_RESTS)
		share_half(view, thread);
	thread->free_rests[thread->n_free_rests++] = number;
}

/* Threads share the first slot, and a handler may have interrupted its thread here. */
static inline int enter(const struct ml_view *view, struct ml_thread *thread)
{
	if (thread == view->threads || thread->is_at_rests)
		return 0;
	thread->is_at_rests = 1;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	return 1;
}

static inline void leave(struct ml_thread *thread)
{
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	thread->is_at_rests = 0;
}

/* ---- turns -------------------------------------------------------------------------------------------- */

static void close_rest(const struct ml_view *view, struct ml_thread *thread, struct ml_open_rest *open)
{
	ml_u32 number = open->number - 1;
	ml_u64 n_left = ML_SHADOW_REST_BLOCKS - open->n_blocks;

	if (!open->number)
		return;
	open->number = 0;
	ml_add(&view->segment->n_shadowed, -n_left);
	if (!ml_subtract(&view->rests[number].n_live, n_left + 1))
		keep(view, thread, number);
}

static __attribute__((noinline)) int open_rest(const struct ml_view *view, struct ml_thread *thread, struct ml_open_rest *open,
					       const struct ml_entry *entry)
{
	ml_u64 start_ns = view->segment->start_ns;
	struct ml_shadow_rest *rest;
	ml_u32 number;

	close_rest(view, thread, open);
	if (!ml_shadow_has_room(view, ML_SHADOW_REST_BLOCKS) || (number = take_any(view, thread)) == ML_SHADOW_NO_REST)
		return 0;
	*open = (struct ml_open_rest){
		.number = number + 1,
		.timestamp_ns = entry->timestamp_ns,
		.sequence = ml_thread_next_sequences(view, thread),
		.function = entry->function,
	};
	rest = &view->rests[number];
	rest->time_function = (entry->timestamp_ns > start_ns ? entry->timestamp_ns - start_ns : 0) |
			      (ml_u64)entry->function << ML_SHADOW_FUNCTION_SHIFT;
	rest->sequence_tid = open->sequence | (ml_u64)entry->tid << ML_SEQUENCE_NUMBER_BITS;
	__atomic_store_n(&rest->n_live, ML_SHADOW_REST_BLOCKS + 1, __ATOMIC_RELEASE);
	ml_add(&view->segment->n_shadowed, ML_SHADOW_REST_BLOCKS);
	return 1;
}

ml_u32 ml_shadow_take_turn(const struct ml_view *view, struct ml_thread *thread, struct ml_entry *entry)
{
	struct ml_open_rest *open = &thread->open_rests[entry->function % ML_OPEN_RESTS];
	ml_u32 rest_turn = ML_SHADOW_NO_REST;

	if (!enter(view, thread))
		return ML_SHADOW_NO_REST;
	if (__builtin_expect(open->number && open->n_blocks < ML_SHADOW_REST_BLOCKS && open->function == entry->function &&
				     open->timestamp_ns == entry->timestamp_ns,
			     1) ||
	    open_rest(view, thread, open, entry)) {
		open->n_blocks++;
		entry->sequence = open->sequence ? (ml_u64)view->segment->session_index << ML_SEQUENCE_NUMBER_BITS |
							   (open->sequence + open->n_blocks) :
						   0;
		rest_turn = (open->number - 1) << ML_SHADOW_TURN_BITS | open->n_blocks;
	}
	leave(thread);
	return rest_turn;
}

static void count_freed(const struct ml_view *view, struct ml_thread *thread)
{
	if (thread == view->threads) {
		ml_add(&view->segment->n_shadowed, ~0ull);
		return;
	}
	ml_add_own(&thread->n_freed, 1);
	if (__builtin_expect(thread->n_freed >= ML_SHADOW_REST_BLOCKS, 0))
		ml_add(&view->segment->n_shadowed, -__atomic_exchange_n(&thread->n_freed, 0, __ATOMIC_RELAXED));
}

void ml_shadow_return_turn(const struct ml_view *view, struct ml_thread *thread, ml_u32 rest_turn)
{
	ml_u32 number = rest_turn >> ML_SHADOW_TURN_BITS;

	if (number >= ml_shadow_n_rests(&view->settings))
		return;
	count_freed(view, thread);
	if (__builtin_expect(ml_subtract(&view->rests[number].n_live, 1) != 0, 1))
		return;
	if (enter(view, thread)) {
		keep(view, thread, number);
		leave(thread);
	} else {
		share(view, number, number);
	}
}

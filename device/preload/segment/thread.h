/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recorder's data of each thread, found without thread-local storage: by thread pointer and tid, since the next thread may
 * get the pointer of an ended one.
 */
#pragma once

#include "preload/freestanding/atomics.h"
#include "preload/segment/segment.h"
#include "preload/freestanding/syscalls.h"

#define ML_THREAD_PHI 0x9e3779b97f4a7c15ull /* 2^64 / golden ratio */

#define ML_INSIDE_OBJECTS (1ull << 32) /* added to is_inside where every call is internal, by whichever code */

/*
 * Offset of the tid in the C library's data of a thread: from the thread pointer, or, plus 1, from the address in the word after
 * it (bionic). 0 = unknown.
 */
extern long ml_thread_tid_offset __attribute__((visibility("hidden")));

/* Finds that offset. To be called before a process has its first slot. */
void ml_thread_find_tid_offset(void);

/* 0 = unknown. */
static inline ml_u32 ml_thread_tid_at(unsigned long pointer)
{
	long offset = __atomic_load_n(&ml_thread_tid_offset, __ATOMIC_RELAXED);

	if (__builtin_expect(!offset, 0))
		return 0;
	if (__builtin_expect(offset & 1, 0))
		pointer = ((const unsigned long *)pointer)[1] - 1;
	return __atomic_load_n((const ml_u32 *)(pointer + (unsigned long)offset), __ATOMIC_RELAXED);
}

/* The owner of a slot (segment.h). */
static inline ml_u64 ml_thread_owner(unsigned long pointer, ml_u32 tid)
{
	return pointer ^ (ml_u64)tid << ML_OWNER_TID_SHIFT;
}

static inline ml_u64 ml_thread_self(void)
{
	unsigned long pointer = ml_thread_pointer();

	return ml_thread_owner(pointer, ml_thread_tid_at(pointer));
}

/* Of the slot's thread, which another may be taking. */
static inline ml_u32 ml_thread_last_tid(const struct ml_thread *thread)
{
	return __atomic_load_n(&thread->tid, __ATOMIC_RELAXED);
}

/* Of the calling thread. Others may share its slot. */
static inline ml_u32 ml_thread_tid(const struct ml_view *view, const struct ml_thread *thread)
{
	ml_u32 tid = __builtin_expect(thread == view->threads, 0) ? ml_thread_tid_at(ml_thread_pointer()) : 0;

	return tid ? tid : ml_thread_last_tid(thread);
}

/* Finds or claims a slot, probing from `start`. */
struct ml_thread *ml_thread_find(const struct ml_view *view, ml_u64 self, ml_u32 start);

/* Slot 0, for threads without a slot of their own. */
struct ml_thread *ml_thread_shared(const struct ml_view *view);

/* The calling thread's slot; slot 0 if there is no room. */
static inline struct ml_thread *ml_thread_current(const struct ml_view *view)
{
	ml_u64 self = ml_thread_self();
	ml_u32 start = (ml_u32)((ml_thread_pointer() * ML_THREAD_PHI) >> 40);
	ml_u32 slot = start & (view->n_near - 1);

	if (__builtin_expect((__atomic_load_n(&view->owners[slot], __ATOMIC_RELAXED) & ~(ml_u64)ML_OWNER_BUSY) == self, 1))
		return &view->threads[slot];
	return ml_thread_find(view, self, start);
}

/*
 * Marks the slot as being written to. Returns 0 if it is marked already: by this thread, whose signal handler calls, or
 * by another that shares the slot. Only the ring and the scratch memory need it.
 */
int ml_thread_enter(const struct ml_view *view, struct ml_thread *thread);
void ml_thread_leave(const struct ml_view *view, struct ml_thread *thread);

/*
 * A thread takes sequence numbers from its own ranges. Multiples of ML_SEQUENCE_RANGE mean "no range". Ranges are never
 * reused, so a number that is read twice is of the same block.
 */
#define ML_SEQUENCE_RANGE 4096u

/* The first number of a new range; 0 if all are used up. */
ml_u64 ml_thread_take_sequence_range(const struct ml_view *view);

/* The next block's number, exact against handlers; 0: none left. */
static inline ml_u64 ml_thread_next_sequence(const struct ml_view *view, struct ml_thread *thread)
{
	ml_u64 number, next;

	do {
		next = number = __atomic_load_n(&thread->next_sequence, __ATOMIC_RELAXED);
		if (__builtin_expect(number % ML_SEQUENCE_RANGE == 0, 0))
			next = ml_thread_take_sequence_range(view);
		if (!next)
			return 0;
		/* Threads share the first slot. */
	} while (!(thread == view->threads ? ml_exchange_if(&thread->next_sequence, number, next + 1) :
					     ml_exchange_own(&thread->next_sequence, number, next + 1)));
	return (ml_u64)view->segment->session_index << ML_SEQUENCE_NUMBER_BITS | next;
}

/* Takes the numbers of a rest; returns the one below the first, 0: none left. */
static inline ml_u64 ml_thread_next_sequences(const struct ml_view *view, struct ml_thread *thread)
{
	ml_u64 step = ML_SHADOW_REST_BLOCKS + 1, number, base;

	do {
		number = __atomic_load_n(&thread->next_sequence, __ATOMIC_RELAXED);
		base = (number + step - 1) & ~(step - 1);
		if (__builtin_expect(base % ML_SEQUENCE_RANGE == 0, 0)) {
			base = ml_thread_take_sequence_range(view);
			if (!base)
				return 0;
			base--;
		}
	} while (!ml_exchange_own(&thread->next_sequence, number, base + step));
	return base;
}

/* To be called after the mark or the number of threads has changed. */
void ml_thread_set_batch(struct ml_peak_state *peak);

/* Uniform 64 bits (xorshift64*). */
ml_u64 ml_thread_random(struct ml_thread *thread);

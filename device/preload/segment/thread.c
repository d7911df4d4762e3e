// SPDX-License-Identifier: Apache-2.0
#include "preload/segment/thread.h"

#define WINDOW 64u /* probed slots */
#define BATCHES_LEAST 65536u /* bytes of all threads together */
#define SHARING_CALLS 64u
#define SHARED_OWNER 8u /* too small for a thread pointer */

static void start_slot(struct ml_thread *thread, ml_u64 owner)
{
	thread->tid = ml_own_tid();
	thread->stack_low = thread->stack_high = 0;
	thread->foreign_low = thread->foreign_high = 0;
	thread->countdown = 0;
	thread->is_inside = thread->is_in_lookup = thread->is_at_rests = 0;
	thread->n_pair_calls = 0;
	for (ml_u32 i = 0; i < ML_OPEN_RESTS; i++)
		thread->open_rests[i].function = 0; /* an open rest has the old owner's tid and gets no more blocks */
	thread->random = 0;
	ML_SYSCALL3(getrandom, &thread->random, sizeof(thread->random), 1 /* GRND_NONBLOCK */);
	thread->random = (thread->random ^ owner * ML_THREAD_PHI) | 1;
}

/* A single thread keeps a batch, too, if its libc does not say that it is alone: that saves a locked instruction. */
void ml_thread_set_batch(struct ml_peak_state *peak)
{
	ml_u64 n_threads = ml_read(&peak->n_threads), all = ml_read(&peak->mark) >> ML_PEAK_STEP_SHIFT;

	if (n_threads > 1) /* divided by the next power of two: 32-bit arm cannot divide such words */
		ml_write(&peak->batch, (all > BATCHES_LEAST ? all : BATCHES_LEAST) >> (64 - __builtin_clzll(n_threads - 1)));
	else if (!&__libc_single_threaded)
		ml_write(&peak->batch, all);
}

static int take(const struct ml_view *view, ml_u32 slot, ml_u64 from, ml_u64 owner)
{
	if (!__atomic_compare_exchange_n(&view->owners[slot], &from, owner, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return 0;
	start_slot(&view->threads[slot], owner);
	if (!from) { /* pending bytes stay with the slot */
		ml_add(&view->segment->peak.n_threads, 1);
		ml_thread_set_batch(&view->segment->peak);
	}
	return 1;
}

/* Whether the slot's thread has ended. A busy slot is never reused: its ring has an unfinished record. */
static int is_dead(const struct ml_view *view, ml_u32 slot, ml_u64 owner)
{
	return !(owner & ML_OWNER_BUSY) && ML_SYSCALL3(tgkill, view->segment->pid, view->threads[slot].tid, 0) == -ESRCH;
}

struct ml_thread *ml_thread_shared(const struct ml_view *view)
{
	if (!ml_read(&view->owners[0]))
		take(view, 0, 0, SHARED_OWNER);
	return view->threads;
}

/* The slots where a thread may be: a window of the near ones, and one of the others. */
static ml_u32 count_probes(const struct ml_view *view)
{
	if (view->n_near < view->settings.n_threads)
		return 2 * WINDOW;
	return view->n_near < WINDOW ? view->n_near : WINDOW;
}

static ml_u32 probed_slot(const struct ml_view *view, ml_u32 start, ml_u32 i)
{
	ml_u32 slot = start + i;

	if (i < WINDOW)
		return slot & (view->n_near - 1);
	slot &= view->settings.n_threads - 1;
	return slot < view->n_near ? slot + view->n_near : slot;
}

/* One of the probed slots that was never used, or else whose thread has ended. */
static struct ml_thread *claim(const struct ml_view *view, ml_u64 self, ml_u32 start, ml_u32 first)
{
	for (ml_u32 i = first; i < first + WINDOW && i < count_probes(view); i++) {
		ml_u32 slot = probed_slot(view, start, i);

		if (slot && !ml_read(&view->owners[slot]) && take(view, slot, 0, self))
			return &view->threads[slot];
	}
	/* each costs a system call: once threads have to share a slot, not at all their calls */
	for (ml_u32 i = first; i < first + WINDOW && i < count_probes(view); i++) {
		ml_u32 slot = probed_slot(view, start, i);
		ml_u64 owner = ml_read(&view->owners[slot]);

		if (ml_read(&view->segment->n_sharing) % SHARING_CALLS)
			break;
		if (slot && is_dead(view, slot, owner) && take(view, slot, owner, self))
			return &view->threads[slot];
	}
	return NULL;
}

static struct ml_thread *claim_slot(const struct ml_view *view, ml_u64 self, ml_u32 start)
{
	struct ml_thread *thread = claim(view, self, start, 0);

	if (!thread)
		thread = claim(view, self, start, WINDOW);
	if (thread)
		return thread;
	ml_add(&view->segment->n_sharing, 1);
	return ml_thread_shared(view);
}

struct ml_thread *ml_thread_find(const struct ml_view *view, ml_u64 self, ml_u32 start)
{
	for (ml_u32 i = 0; i < count_probes(view); i++) {
		ml_u32 slot = probed_slot(view, start, i);
		ml_u64 owner = __atomic_load_n(&view->owners[slot], __ATOMIC_RELAXED);

		if ((owner & ~(ml_u64)ML_OWNER_BUSY) == self)
			return &view->threads[slot];
		if (!owner && slot)
			break;
	}
	return claim_slot(view, self, start);
}

int ml_thread_enter(const struct ml_view *view, struct ml_thread *thread)
{
	ml_u64 *word = &view->owners[thread - view->threads];
	ml_u64 owner = __atomic_load_n(word, __ATOMIC_RELAXED);

	return !(owner & ML_OWNER_BUSY) &&
	       __atomic_compare_exchange_n(word, &owner, owner | ML_OWNER_BUSY, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

void ml_thread_leave(const struct ml_view *view, struct ml_thread *thread)
{
	__atomic_fetch_and(&view->owners[thread - view->threads], ~(ml_u64)ML_OWNER_BUSY, __ATOMIC_RELEASE);
}

ml_u64 ml_thread_take_sequence_range(const struct ml_view *view)
{
	ml_u64 range = __atomic_add_fetch(&view->segment->next_sequence_range, 1, __ATOMIC_RELAXED);

	return range <= ML_SEQUENCE_NUMBER_MASK / ML_SEQUENCE_RANGE ? range * ML_SEQUENCE_RANGE + 1 : 0;
}

ml_u64 ml_thread_random(struct ml_thread *thread)
{
	ml_u64 x = thread->random;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	thread->random = x;
	return x * 0x2545f4914f6cdd1dull;
}

// SPDX-License-Identifier: Apache-2.0
#include "preload/segment/thread.h"

#define WINDOW 64u /* probed slots */
#define BATCHES_LEAST 65536u /* bytes of all threads together */
#define SHARING_CALLS 64u
#define SHARED_OWNER 8u /* too small for a thread pointer */

#if defined(__x86_64__)
#define TOWARDS_DATA 1 /* from the thread pointer, in glibc and musl (TLS variant II) */
#else
#define TOWARDS_DATA (-1)
#endif
#define DATA_BYTES 4096 /* at most */
#define BIONIC_OFFSET ((long)(2 * sizeof(long))) /* struct pthread_internal_t: next, prev, tid */

long ml_thread_tid_offset;

static int holds(unsigned long address, ml_u32 tid)
{
	ml_u32 word;

	return ml_read_memory(&word, address, sizeof(word)) == sizeof(word) && word == tid;
}

void ml_thread_find_tid_offset(void)
{
	unsigned long pointer = ml_thread_pointer(), behind;
	ml_u32 tid = ml_own_tid();
	long offset = TOWARDS_DATA * (long)sizeof(tid);

	if (ml_thread_tid_offset || !tid)
		return;
	if (ml_read_memory(&behind, pointer + sizeof(long), sizeof(behind)) == sizeof(behind) &&
	    holds(behind + (unsigned long)BIONIC_OFFSET, tid)) {
		ml_thread_tid_offset = BIONIC_OFFSET + 1;
		return;
	}
	while (offset * TOWARDS_DATA < DATA_BYTES && !holds(pointer + (unsigned long)offset, tid))
		offset += TOWARDS_DATA * (long)sizeof(tid);
	if (offset * TOWARDS_DATA < DATA_BYTES)
		ml_thread_tid_offset = offset;
}

/* A child of vfork() counts as its parent. */
static ml_u32 own_tid(const struct ml_view *view)
{
	ml_u32 found = ml_thread_tid_at(ml_thread_pointer()), tid = ml_own_tid();

	if (found && found != tid) {
		if ((ml_u32)ML_SYSCALL0(getpid) != view->segment->pid)
			return found;
		__atomic_store_n(&ml_thread_tid_offset, 0, __ATOMIC_RELAXED); /* another word */
	}
	return tid;
}

static void start_slot(const struct ml_view *view, struct ml_thread *thread, ml_u64 owner)
{
	__atomic_store_n(&thread->tid, own_tid(view), __ATOMIC_RELAXED);
	thread->stack_low = thread->stack_high = 0;
	thread->foreign_low = thread->foreign_high = 0;
	thread->countdown = 0;
	thread->is_inside = thread->is_in_lookup = thread->is_at_rests = thread->is_recording = 0;
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

/* Busy until the slot has the new tid, so that is_dead() never sees the old one. */
static int take(const struct ml_view *view, ml_u32 slot, ml_u64 from, ml_u64 owner)
{
	if (!__atomic_compare_exchange_n(&view->owners[slot], &from, owner | ML_OWNER_BUSY, 0, __ATOMIC_ACQ_REL,
					 __ATOMIC_RELAXED))
		return 0;
	start_slot(view, &view->threads[slot], owner);
	ml_thread_leave(view, &view->threads[slot]);
	if (!from) { /* pending bytes stay with the slot */
		ml_add(&view->segment->peak.n_threads, 1);
		ml_thread_set_batch(&view->segment->peak);
	}
	return 1;
}

/* Whether the slot's thread has ended. A busy slot is never reused: its ring has an unfinished record. */
static int is_dead(const struct ml_view *view, ml_u32 slot, ml_u64 owner)
{
	return !(owner & ML_OWNER_BUSY) &&
	       ML_SYSCALL3(tgkill, view->segment->pid, ml_thread_last_tid(&view->threads[slot]), 0) == -ESRCH;
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
		ml_u64 owner = __atomic_load_n(&view->owners[slot], __ATOMIC_ACQUIRE);

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

/* Whether the slot is of an ended thread, whose thread pointer the caller has now. */
static int is_predecessor(const struct ml_view *view, ml_u32 slot, ml_u64 owner)
{
	return ml_thread_tid_offset && owner == ml_thread_owner(ml_thread_pointer(), ml_thread_last_tid(&view->threads[slot]));
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
		if (is_predecessor(view, slot, owner) && take(view, slot, owner, self))
			return &view->threads[slot];
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

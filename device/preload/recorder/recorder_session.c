// SPDX-License-Identifier: Apache-2.0
/* The sessions of one process, one after another: the recorder's view and whether it records. After a fork: forks.h. */
#include "preload/recorder/recorder_session.h"

#include <sys/mman.h>

#include "preload/freestanding/clock.h"
#include "preload/recorder/connect.h"
#include "preload/recorder/forks.h"
#include "preload/stacks/frame_resolve.h"
#include "preload/stacks/maps.h"
#include "preload/segment/thread.h"
#include "preload/freestanding/syscalls.h"

/*
 * Each session has its own view, which is never reused: a call that began under an old session ends there, in memory
 * that nothing reads, however long its thread was not scheduled. About 500 bytes a session.
 */
#define VIEWS_BYTES 16384u /* mapped at a time */
#define RETIRED_MAX 64u
#define RETIREMENT_NS 10000000000ull
#define LOOK_EVERY_NS 1000000000ull
#define SILENCE_NS 3000000000ull /* of the agent, which updates agent_alive_ns four times a second */

static struct ml_view empty_view;
struct ml_view *ml_recorder_view_in_force = &empty_view;
static struct ml_view *next_views; /* not used yet */
static ml_u32 n_next_views;

static int never = ML_RECORDER_NEVER;
static struct ml_forks_words *words;
int *ml_recorder_state = &never;
int ml_recorder_is_sampling;
ml_u32 ml_recorder_leaked_session;
static int is_armed; /* a forked child has a session to join */

/* Memory in place of old segments, for calls that were in progress when their session ended. */
static struct {
	void *base; /* NULL: free */
	ml_u64 bytes;
	ml_u64 ended_ns;
} retired[RETIRED_MAX];
static const struct ml_view *last_retired;

/*
 * A free slot, or that of the oldest segment. It is unmapped if no call can be in it any more; else the address space
 * is leaked.
 */
static ml_u32 find_retired_slot(ml_u64 now_ns)
{
	ml_u32 oldest = 0;

	for (ml_u32 i = 0; i < RETIRED_MAX; i++) {
		if (!retired[i].base)
			return i;
		if (retired[i].ended_ns < retired[oldest].ended_ns)
			oldest = i;
	}
	if (now_ns - retired[oldest].ended_ns > RETIREMENT_NS)
		ML_SYSCALL2(munmap, retired[oldest].base, retired[oldest].bytes);
	return oldest;
}

void ml_recorder_retire(void)
{
	const struct ml_view *view = ml_view_in_force();
	ml_u64 now_ns = ml_clock_exact_ns();
	ml_u32 runs = ML_SESSION_RUNS, slot;

	if (!view->segment || view == last_retired)
		return;
	__atomic_compare_exchange_n(&view->segment->is_over, &runs, ML_SESSION_LEFT, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
	/* If that fails (strict overcommit), the segment stays until it is unmapped. */
	ML_MMAP(view->segment, view->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
		-1);
	last_retired = view;
	slot = find_retired_slot(now_ns);
	retired[slot].base = view->segment;
	retired[slot].bytes = view->bytes;
	retired[slot].ended_ns = now_ns;
}

static void unmap_retired(void)
{
	ml_u64 now_ns = ml_clock_exact_ns();

	for (ml_u32 i = 0; i < RETIRED_MAX; i++) {
		if (!retired[i].base || now_ns - retired[i].ended_ns <= RETIREMENT_NS)
			continue;
		ML_SYSCALL2(munmap, retired[i].base, retired[i].bytes);
		retired[i].base = NULL;
	}
}

static int make_views(void)
{
	long base;

	if (n_next_views)
		return 0;
	base = ML_MMAP(0, VIEWS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	if (ml_is_error(base))
		return (int)base;
	next_views = (struct ml_view *)base;
	n_next_views = VIEWS_BYTES / sizeof(*next_views);
	return 0;
}

static int connect_next(void)
{
	int error = make_views();
	struct ml_view *next = next_views;

	if (error)
		return error;
	unmap_retired();
	next->session = ml_recorder_view_in_force->session + 1;
	next->segment = NULL;
	ml_thread_find_tid_offset();
	error = ml_connect_segment(next);
	if (error) {
		if (next->segment)
			ML_SYSCALL2(munmap, next->segment, next->bytes);
		return error;
	}
	next_views++;
	n_next_views--;
	__atomic_store_n(&ml_recorder_view_in_force, next, __ATOMIC_RELEASE);
	__atomic_store_n(&ml_recorder_is_sampling, next->settings.sample_bytes != 0, __ATOMIC_RELAXED);
	return 0;
}

/*
 * In a forked child: memory of its own takes the place of its parent's segment. Without any (strict overcommit), nothing does, and a
 * call that the fork interrupted would fault: only a signal handler that forks can interrupt one.
 */
static void leave_parents_segment(void)
{
	const struct ml_view *view = ml_view_in_force();
	ml_u64 bytes = ml_view_unshared_bytes(view);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;

	if (!is_armed || ml_connect_without_agent || words->has_left)
		return;
	words->has_left = 1;
	if (ml_is_error(ML_MMAP(view->segment, bytes, PROT_READ | PROT_WRITE, flags, -1)))
		ML_MMAP(view->segment, bytes, PROT_NONE, flags, -1);
	ML_SYSCALL3(madvise, view->segment, bytes, MADV_DONTDUMP);
}

int ml_recorder_join(void)
{
	int error;

	if (!words)
		words = ml_forks_watch(leave_parents_segment);
	if (!words)
		return -EAGAIN;
	error = connect_next();
	__atomic_store_n(&words->state, ML_RECORDER_NEVER, __ATOMIC_RELAXED);
	__atomic_store_n(&ml_recorder_state, &words->state, __ATOMIC_RELEASE);
	return error;
}

void ml_recorder_turn_on(void)
{
	is_armed = 1;
	__atomic_store_n(ml_recorder_state, ML_RECORDER_ON, __ATOMIC_RELEASE);
}

void ml_recorder_turn_off(void)
{
	is_armed = 0;
	if (ml_recorder_state != &never)
		__atomic_store_n(ml_recorder_state, ML_RECORDER_NEVER, __ATOMIC_RELEASE);
}

void ml_recorder_start(char *const *environment)
{
	if (ml_recorder_state == &never && ml_connect_read_environment(environment) && !ml_recorder_join())
		ml_recorder_turn_on();
}

/* Joins the session if children are followed. */
static enum ml_recorder_state state_after_fork(void)
{
	const struct ml_view *view = ml_view_in_force();

	leave_parents_segment(); /* no handler runs after clone() */
	if (!is_armed)
		return ML_RECORDER_NEVER;
	if (!(view->settings.flags & ML_SETTING_FOLLOW)) {
		ml_u64 index = __atomic_fetch_add(&view->children->n, 1, __ATOMIC_RELAXED);
		ml_u32 *slot = &view->children->pids[index % ML_CHILDREN_PIDS];

		__atomic_store_n(slot, (ml_u32)ML_SYSCALL0(getpid), __ATOMIC_RELAXED);
		return ML_RECORDER_NEVER;
	}
	ml_maps_forget(0); /* the threads that held them are the parent's */
	ml_frame_resolve_forget(0);
	return connect_next() ? ML_RECORDER_NEVER : ML_RECORDER_ON;
}

/* Threads that a child makes of its parent's stacks may all be the first to allocate: the others wait for one. */
int ml_recorder_after_fork(void)
{
	unsigned long self = (unsigned long)ml_thread_pointer(), joining = 0;
	struct ml_wait wait = { 0 };

	if (__atomic_compare_exchange_n(&words->joining, &joining, self, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		__atomic_store_n(ml_recorder_state, state_after_fork(), __ATOMIC_RELEASE);
	else if (joining == self)
		return 0; /* in a handler of the thread that joins */
	while (ml_recorder_state_now() == ML_RECORDER_FORKED)
		ml_wait_on(&wait);
	return ml_recorder_state_now() == ML_RECORDER_ON;
}

int ml_recorder_is_following(void)
{
	return ml_recorder_is_on() && (ml_view_in_force()->settings.flags & ML_SETTING_FOLLOW);
}

int ml_recorder_is_own_process(void)
{
	return ml_recorder_is_on() && (ml_u32)ML_SYSCALL0(getpid) == ml_view_in_force()->segment->pid;
}

static int has_agent(const struct ml_view *view, ml_u64 now_ns)
{
	ml_u64 alive_ns = __atomic_load_n(&view->segment->agent_alive_ns, __ATOMIC_RELAXED);

	return !alive_ns || now_ns < alive_ns + SILENCE_NS || ml_connect_is_agent_there();
}

void ml_recorder_check_agent(const struct ml_view *view, ml_u64 now_ns)
{
	__atomic_store_n(&view->segment->next_check_ns, now_ns + LOOK_EVERY_NS, __ATOMIC_RELAXED);
	if (!has_agent(view, now_ns))
		__atomic_store_n(&view->segment->is_over, ML_SESSION_ABANDONED, __ATOMIC_RELAXED);
}

int ml_recorder_is_read(void)
{
	const struct ml_view *view = ml_view_in_force();

	return !__atomic_load_n(&view->segment->is_over, __ATOMIC_RELAXED) && has_agent(view, ml_clock_coarse_ns());
}

/* Stores the session's number, not a state: a thread that was not scheduled meanwhile must not end a later session. */
int ml_recorder_check_over(void)
{
	const struct ml_view *view = ml_view_in_force();

	if (__atomic_load_n(&view->segment->is_over, __ATOMIC_RELAXED) == ML_SESSION_ABANDONED)
		__atomic_store_n(&ml_recorder_leaked_session, view->session, __ATOMIC_RELAXED);
	return 0;
}

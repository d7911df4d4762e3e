/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this process is recorded, and the view that the recorder writes to. */
#pragma once

#include "preload/segment/segment.h"

extern struct ml_view *ml_recorder_view_in_force __attribute__((visibility("hidden")));

/* To be read once a call, after the state: the next session has another view. The settings are 0 before the first. */
static inline const struct ml_view *ml_view_in_force(void)
{
	return __atomic_load_n(&ml_recorder_view_in_force, __ATOMIC_ACQUIRE);
}

/* Joins the session named in the environment. Without one nothing is ever recorded. */
void ml_recorder_start(char *const *environment);

/*
 * Joins the session in ml_connect_session. Recording into its segment begins with ml_recorder_turn_on(). No other
 * session may be recorded. 0 or -errno.
 */
int ml_recorder_join(void);
void ml_recorder_turn_on(void);
void ml_recorder_turn_off(void);

/* Releases the last session's memory. To be called after it was turned off and the agent has read it. */
void ml_recorder_retire(void);

/* The number of a session that the process itself has to end (ML_SESSION_ABANDONED); 0 = none. */
extern ml_u32 ml_recorder_leaked_session __attribute__((visibility("hidden")));

enum ml_recorder_state {
	ML_RECORDER_FORKED = 0, /* left by fork() in a child */
	ML_RECORDER_ON = 1,
	ML_RECORDER_NEVER = 2,
};

/*
 * Points to a word that fork() clears (forks.h), so that a child never writes to its parent's segment. A child of
 * vfork() shares the word with its parent, as it shares the heap.
 */
extern int *ml_recorder_state __attribute__((visibility("hidden")));

/* Acquire: a reader of the state sees what was set up before it. */
static inline int ml_recorder_state_now(void)
{
	return __atomic_load_n(__atomic_load_n(&ml_recorder_state, __ATOMIC_ACQUIRE), __ATOMIC_ACQUIRE);
}

/* Called in a forked child: joins the session if children are followed. */
int ml_recorder_after_fork(void);

/* Called when the session is over, because the agent ended it or is gone. Returns 0. */
int ml_recorder_check_over(void);

/* 1 while this process is recorded. */
static inline int ml_recorder_is_on(void)
{
	int state = ml_recorder_state_now();

	if (__builtin_expect(state == ML_RECORDER_ON, 1))
		return __builtin_expect(__atomic_load_n(&ml_view_in_force()->segment->is_over, __ATOMIC_RELAXED) ==
						ML_SESSION_RUNS,
					1) ||
		       ml_recorder_check_over();
	return state == ML_RECORDER_FORKED && ml_recorder_after_fork();
}

/* 1 if children are recorded, too; they inherit the environment. */
int ml_recorder_is_following(void);

/* 0 in a child of vfork(), which shares all else with its parent. */
int ml_recorder_is_own_process(void);

/* 1 while the current session samples. */
extern int ml_recorder_is_sampling __attribute__((visibility("hidden")));

/* Whether the session goes on, and an agent reads what is recorded. */
int ml_recorder_is_read(void);

/* Ends the session if the agent is gone, which may have been killed. To be called now and then. */
void ml_recorder_check_agent(const struct ml_view *view, ml_u64 now_ns);

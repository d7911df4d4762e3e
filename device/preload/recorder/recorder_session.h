/* SPDX-License-Identifier: Apache-2.0 */
/* The view that the recorder writes to, for the recorder itself. */
#pragma once

#include "preload/segment/segment.h"

extern struct ml_view *ml_recorder_view_in_force __attribute__((visibility("hidden")));

/* To be asked once in a call, after the state was read: another session has another. */
static inline const struct ml_view *ml_view_in_force(void)
{
	return __atomic_load_n(&ml_recorder_view_in_force, __ATOMIC_ACQUIRE);
}

/* Joins the session named in the environment; without one nothing is recorded, ever. */
void ml_recorder_start(char *const *environment);

/*
 * Joins the session that ml_connect_session names; what is recorded goes into its segment from then on, once it is turned
 * on. Not while another session is recorded. 0, or -errno.
 */
int ml_recorder_join(void);
void ml_recorder_turn_on(void);
void ml_recorder_turn_off(void);

/* After it was turned off and the agent has what it needs: gives back the memory of the session that was joined last. */
void ml_recorder_retire(void);

/* The number of the session that nobody will take out of the process (ML_SESSION_ABANDONED), 0 = none. */
extern ml_u32 ml_recorder_leaked_session __attribute__((visibility("hidden")));

enum ml_recorder_state {
	ML_RECORDER_FORKED = 0, /* what fork() leaves in a child */
	ML_RECORDER_ON = 1,
	ML_RECORDER_NEVER = 2,
};

/*
 * Points to a word that fork() clears (forks.h), so that a child never writes into its parent's books. A child of
 * vfork() shares it with the parent, as it shares the heap.
 */
extern int *ml_recorder_state __attribute__((visibility("hidden")));

/* What was set up before the state was set is seen by who reads it. */
static inline int ml_recorder_state_now(void)
{
	return __atomic_load_n(__atomic_load_n(&ml_recorder_state, __ATOMIC_ACQUIRE), __ATOMIC_ACQUIRE);
}

/* In a child: joins the session when children are followed. What it inherited stays the parent's. */
int ml_recorder_after_fork(void);

/* 0. The session in force is over, by its agent's word or because that is gone. */
int ml_recorder_check_over(void);

/* 1 while this process is recorded. */
static inline int ml_recorder_is_on(void)
{
	int state = ml_recorder_state_now();

	if (__builtin_expect(state == ML_RECORDER_ON, 1))
		return __builtin_expect(__atomic_load_n(&ml_view_in_force()->segment->is_over, __ATOMIC_RELAXED) == ML_SESSION_RUNS, 1) ||
		       ml_recorder_check_over();
	return state == ML_RECORDER_FORKED && ml_recorder_after_fork();
}

/* What this process shares with the agent; its settings are all 0 before the first session. */
const struct ml_view *ml_recorder_view(void);

/* 1 when children are to be recorded too: they inherit the environment. */
int ml_recorder_is_following(void);

/* 0 in a child of vfork(), which shares all the rest with its parent. */
int ml_recorder_is_own_process(void);

/* 1 while the session in force samples. */
extern int ml_recorder_is_sampling __attribute__((visibility("hidden")));

/* Ends the session when the agent is gone: one that was killed leaves nobody to do it. To be called now and then. */
void ml_recorder_check_agent(const struct ml_view *view, ml_u64 now_ns);

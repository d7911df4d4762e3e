/* SPDX-License-Identifier: Apache-2.0 */
/* What to record. Ways to get called (interpose.c) know only this header. All functions are async-signal safe. */
#ifndef MEMLEAK_RECORDER_H
#define MEMLEAK_RECORDER_H

#include "preload/recorder/recorder_session.h"
#include "preload/freestanding/registers.h"
#include "preload/segment/segment.h"

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

/* The number of the session that nobody will take out of the process (ML_IS_LEFT), 0 = none. */
extern ml_u32 ml_recorder_orphan __attribute__((visibility("hidden")));

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
int ml_recorder_heed_end(void);

/* 1 while this process is recorded. */
static inline int ml_recorder_is_on(void)
{
	int state = ml_recorder_state_now();

	if (__builtin_expect(state == ML_RECORDER_ON, 1))
		return __builtin_expect(__atomic_load_n(&ml_view_in_force()->segment->is_over, __ATOMIC_RELAXED) == ML_GOES_ON, 1) ||
		       ml_recorder_heed_end();
	return state == ML_RECORDER_FORKED && ml_recorder_after_fork();
}

/* What this process shares with the agent; its settings are all 0 before the first session. */
const struct ml_view *ml_recorder_view(void);

/* 1 when children are to be recorded too: they inherit the environment. */
int ml_recorder_is_following(void);

/* 0 in a child of vfork(), which shares all the rest with its parent. */
int ml_recorder_is_own_process(void);

/*
 * The fast way past the recorder while it samples: 1 when nothing is to be recorded of the call, and the original is
 * all that is needed. 0 decides nothing.
 */
extern int ml_recorder_is_sampling __attribute__((visibility("hidden")));
int ml_recorder_skips_alloc(ml_u64 size, ml_u64 return_address);
int ml_recorder_skips_free(const void *pointer, ml_u64 return_address);

/* old: what realloc() was given, else NULL. */
void ml_recorder_alloc(enum ml_function function, void *address, ml_u64 size, void *old,
		       const struct ml_registers *registers);

/*
 * Around an original that may call other functions of the family: what it calls is internal, the outermost call is the
 * block. A signal handler in between is told apart by its return address. What the one returns, the other is given.
 */
struct ml_thread *ml_recorder_enter_original(void);
void ml_recorder_leave_original(struct ml_thread *thread);

/*
 * Before the real free. 1 when the block was in the table: *block is what it was. A claim that turns out wrong
 * (realloc failed) is given back.
 */
int ml_recorder_claim(void *address, ml_u64 return_address, struct ml_entry *block);
/* The same for a block that cannot be given back. */
int ml_recorder_remove(void *address, ml_u64 return_address, struct ml_entry *block);
void ml_recorder_give_back(void *address, const struct ml_entry *block);

/* The claimed block is really gone, by this function; ML_FN_UNKNOWN: by a realloc() that is told of as a whole. */
void ml_recorder_freed(enum ml_function function, void *address, const struct ml_entry *block);

/*
 * Functions of --pairs. address: the handle, with the family in its top byte (pair_rule.h). A release is told as the function
 * is entered: 1 when the handle was held, and *block is what it was; ml_recorder_freed() then has it gone, and
 * ml_recorder_keep() has it held again. replaces: what was held under that handle is released by the call.
 */
void ml_recorder_acquire(enum ml_function function, ml_u64 address, ml_u64 size, int replaces,
			 const struct ml_registers *registers);
int ml_recorder_release(ml_u64 address, struct ml_entry *block);
int ml_recorder_release_if_held(ml_u64 address, struct ml_entry *block); /* what is not is no free that went astray */
void ml_recorder_keep(ml_u64 address, const struct ml_entry *block);

#endif

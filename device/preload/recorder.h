/* SPDX-License-Identifier: Apache-2.0 */
/* What to record. Ways to get called (interpose.c) know only this header. All functions are async-signal safe. */
#ifndef MEMLEAK_RECORDER_H
#define MEMLEAK_RECORDER_H

#include "registers.h"
#include "segment.h"

/* Joins the session named in the environment; without one nothing is recorded, ever. */
void ml_recorder_start(char *const *environment);

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

/* In a child: joins the session when children are followed. What it inherited stays the parent's. */
int ml_recorder_after_fork(void);

/* 1 while this process is recorded. */
static inline int ml_recorder_is_on(void)
{
	int state = *(volatile int *)ml_recorder_state;

	if (__builtin_expect(state == ML_RECORDER_ON, 1))
		return 1;
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
 * block. A signal handler in between is told apart by its return address.
 */
void ml_recorder_enter_original(void);
void ml_recorder_leave_original(void);

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

#endif

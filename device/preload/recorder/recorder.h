/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recorder: calls of the interposed functions come in; counters, live blocks and evidence in the segment go out.
 * The entries use only this header. All functions are async-signal safe.
 */
#pragma once

#include "pair_rule.h"
#include "preload/recorder/recorder_session.h"
#include "preload/freestanding/registers.h"
#include "preload/segment/thread.h"

/* The fast path while sampling: 1 if only the original needs to be called. 0 means nothing. */
int ml_recorder_skips_alloc(ml_u64 size, ml_u64 return_address);
int ml_recorder_skips_free(const void *pointer, ml_u64 return_address);

/* old: realloc()'s argument, else NULL. */
void ml_recorder_alloc(enum ml_function function, void *address, ml_u64 size, void *old, const struct ml_registers *registers);

/*
 * Around an original that may call other allocator functions: those calls are internal, the outermost one makes the
 * block. A signal handler's call is recognized by its return address. The result of the first function is the argument
 * of the second. NULL: nothing is recorded, or the thread shares a slot, where other threads' calls would be taken for internal;
 * there, what an original calls is recorded, too.
 */
static inline struct ml_thread *ml_recorder_enter(ml_u64 depth)
{
	const struct ml_view *view;
	struct ml_thread *thread;

	if (!ml_recorder_is_on())
		return NULL;
	view = ml_view_in_force();
	thread = ml_thread_current(view);
	if (__builtin_expect(thread == view->threads, 0))
		return NULL;
	thread->is_inside += depth;
	return thread;
}

static inline void ml_recorder_leave(struct ml_thread *thread, ml_u64 depth)
{
	if (thread)
		thread->is_inside -= depth;
}

static inline struct ml_thread *ml_recorder_enter_original(void)
{
	return ml_recorder_enter(1);
}

static inline void ml_recorder_leave_original(struct ml_thread *thread)
{
	ml_recorder_leave(thread, 1);
}

/* Around an original that allocates from malloc and mmap for a block of its own. Every call until it returns is internal. */
static inline struct ml_thread *ml_recorder_enter_objects(void)
{
	return ml_recorder_enter(ML_INSIDE_OBJECTS);
}

static inline void ml_recorder_leave_objects(struct ml_thread *thread)
{
	ml_recorder_leave(thread, ML_INSIDE_OBJECTS);
}

/*
 * Before the real free: takes the block out of the table and copies it to *block, or returns 0. If the real call fails
 * (realloc), ml_recorder_restore() puts it back.
 */
int ml_recorder_claim(void *address, ml_u64 return_address, struct ml_entry *block);
/* For a block that will not be restored; sets only what ml_recorder_freed() needs. */
int ml_recorder_remove(void *address, ml_u64 return_address, struct ml_entry *block);

/* The claimed block has been freed by this function; ML_FN_UNKNOWN: by a realloc(), whose event reports both. */
void ml_recorder_freed(enum ml_function function, void *address, const struct ml_entry *block);

/*
 * Functions of --pairs. address: the handle, with the family in its top byte (pair_rule.h). A release is claimed at the
 * function's entry and then confirmed by ml_recorder_freed() or undone by ml_recorder_restore(). rule: whether the
 * call releases what the handle held before, or adds to it.
 */
void ml_recorder_acquire(enum ml_function function, ml_u64 address, ml_u64 size, const struct ml_pair *rule,
			 const struct ml_registers *registers);
int ml_recorder_release(ml_u64 address, struct ml_entry *block);
int ml_recorder_release_if_held(ml_u64 address, struct ml_entry *block); /* a handle that is not live is not counted */
void ml_recorder_restore(ml_u64 address, const struct ml_entry *block);

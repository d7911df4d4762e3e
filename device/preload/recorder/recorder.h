/* SPDX-License-Identifier: Apache-2.0 */
/* What to record. Ways to get called (interpose.c) know only this header. All functions are async-signal safe. */
#pragma once

#include "preload/recorder/recorder_session.h"
#include "preload/freestanding/registers.h"
#include "preload/segment/segment.h"

/*
 * The fast way past the recorder while it samples: 1 when nothing is to be recorded of the call, and the original is
 * all that is needed. 0 decides nothing.
 */
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

/* The claimed block is really gone, by this function; ML_FN_UNKNOWN: by a realloc() that is told of as a whole. */
void ml_recorder_freed(enum ml_function function, void *address, const struct ml_entry *block);

/*
 * Functions of --pairs. address: the handle, with the family in its top byte (pair_rule.h). A release is told as the function
 * is entered: 1 when the handle was held, and *block is what it was; ml_recorder_freed() then has it gone, and
 * ml_recorder_restore() has it held again. replaces: what was held under that handle is released by the call.
 */
void ml_recorder_acquire(enum ml_function function, ml_u64 address, ml_u64 size, int replaces,
			 const struct ml_registers *registers);
int ml_recorder_release(ml_u64 address, struct ml_entry *block);
int ml_recorder_release_if_held(ml_u64 address, struct ml_entry *block); /* what is not is no free that went astray */
void ml_recorder_restore(ml_u64 address, const struct ml_entry *block);

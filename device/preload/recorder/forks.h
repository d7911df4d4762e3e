/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What makes fork() safe in the shim. A child starts with a copy of everything but the parent's other threads, and
 * shares the segment with its parent.
 *   1. fork() clears the words of ml_forks_watch(); ml_recorder_state points to one. The child's first call
 *      finds ML_RECORDER_FORKED and runs ml_recorder_after_fork() (recorder_session.c). It stops recording, or joins
 *      with a view and a segment of its own. It never writes to the parent's segment.
 *   2. A thread of the parent may have held shared state. The child resets it without waiting: ml_maps_forget(0)
 *      (stacks/maps.c, code_lines.c) and ml_frame_resolve_forget(0) (stacks/frame_resolve.c).
 *   3. Locks and caches name their process: the owner in lock.h, the pid in frame_resolve.c. Another's is free or stale.
 *   4. A child of vfork() shares the word and records as its parent; ml_recorder_is_own_process() is 0 in it.
 *   5. A program that records itself (linked/) gets -ECHILD for every call in a child.
 *   6. The child may have given up rights that its parent has. So it has the parent's segment no longer, but memory of its own in
 *      its place: a call that the fork interrupted goes on there. Of the segment it keeps what counts such children.
 */
#pragma once

#include "wire.h"

/* What fork() sets to 0 in the child; a child of vfork() shares it with its parent. */
struct ml_forks_words {
	int state; /* enum ml_recorder_state */
	ml_u32 own_pid; /* struct ml_sandbox */
	ml_u32 has_left; /* the parent's segment */
	unsigned long joining; /* pointer of the thread that joins the session in a child */
};

/*
 * in_child: called in each child of fork(), before fork() returns there. NULL if neither kernel nor libc can set the words to 0.
 * Before Linux 4.14 libc does it, and a child made by clone() itself is mistaken for its parent.
 */
struct ml_forks_words *ml_forks_watch(void (*in_child)(void));

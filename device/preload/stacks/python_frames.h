/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calling thread's frames in Python, where the process has a CPython whose structures python_layout.h knows. A thread in an
 * allocation changes its own frames at no other place, so they are read without the interpreter's lock.
 */
#pragma once

#include "preload/stacks/frame_walk.h"

enum ml_python_state {
	ML_PYTHON_UNTRIED = 0,
	ML_PYTHON_READ = 1, /* a look that could not fault has found what the layout says */
	ML_PYTHON_REFUSED = 2,
};

extern int ml_python_state;

ml_u64 ml_python_hash_frames(const struct ml_view *view, const struct ml_caller *caller);

/* Of every frame; 0 = none. */
static inline ml_u64 ml_python_hash(const struct ml_view *view, const struct ml_caller *caller)
{
	if (__builtin_expect(__atomic_load_n(&ml_python_state, __ATOMIC_RELAXED) == ML_PYTHON_REFUSED, 1))
		return 0;
	return ml_python_hash_frames(view, caller);
}

/* The frames, at most ML_PYTHON_FRAMES_MAX. Sends what is not known yet of their functions. The caller holds ML_OWNER_BUSY. */
void ml_python_store(const struct ml_view *view, struct ml_thread *thread, const struct ml_caller *caller,
		     struct ml_python_frames *to);

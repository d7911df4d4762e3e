/* SPDX-License-Identifier: Apache-2.0 */
/* Signal handlers on the thread's alternate stack (sigaltstack(2)): what they interrupted. */
#pragma once

#include "preload/recorder/stack_bounds.h"

/* ml_signal_stack_find() for a stack that is not the thread's own. */
void ml_signal_stack_find_foreign(const struct ml_view *view, struct ml_thread *thread, struct ml_caller *caller,
				  struct ml_interrupted *room);

/* Sets caller->interrupted, in `room`, and the caller's bounds, if the kernel confirms that a handler runs on this stack. */
static inline void ml_signal_stack_find(const struct ml_view *view, struct ml_thread *thread, struct ml_caller *caller,
					struct ml_interrupted *room)
{
	caller->interrupted = NULL;
	if (__builtin_expect(caller->stack_end != thread->stack_high || !caller->stack_end, 0))
		ml_signal_stack_find_foreign(view, thread, caller, room);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the end of the stack that a call runs on, and how far it can be read safely. */
#pragma once

#include "preload/segment/segment.h"
#include "preload/stacks/frame_walk.h"

/* Whether this thread runs on its alternate stack (sigaltstack(2)), at this stack pointer; then its bounds. */
int ml_stack_bounds_of_alternate(ml_u64 stack_pointer, ml_u64 *low, ml_u64 *high);

/* ml_stack_bounds_find() for a stack other than the last. */
void ml_stack_bounds_search(const struct ml_view *view, struct ml_thread *thread, struct ml_caller *caller);

/* Sets readable_end and stack_end. */
static inline void ml_stack_bounds_find(const struct ml_view *view, struct ml_thread *thread, struct ml_caller *caller)
{
	if (__builtin_expect(caller->stack_pointer - thread->stack_low < thread->stack_high - thread->stack_low, 1))
		caller->readable_end = caller->stack_end = thread->stack_high;
	else
		ml_stack_bounds_search(view, thread, caller);
}

// SPDX-License-Identifier: Apache-2.0
#include "preload/recorder/stack_bounds.h"

#include "preload/stacks/maps.h"
#include "preload/freestanding/syscalls.h"
#include "preload/segment/thread.h"

#define PAGE_BYTES 4096u /* the smallest page size */

/* mm/mmap.c keeps stack_guard_gap (256 pages) below a growing stack free of other mappings. */
#define STACK_GROWTH_BYTES (512u << 10)

#define SS_ONSTACK 1 /* include/uapi/linux/signal.h */

typedef unsigned long word; /* of the architecture */

int ml_stack_bounds_of_alternate(ml_u64 stack_pointer, ml_u64 *low, ml_u64 *high)
{
	struct { /* stack_t */
		word low;
		int flags;
		word bytes;
	} stack;

	if (ML_SYSCALL2(sigaltstack, 0, &stack) || !(stack.flags & SS_ONSTACK) || stack_pointer - stack.low >= stack.bytes)
		return 0;
	*low = stack.low;
	*high = (ml_u64)stack.low + stack.bytes;
	return 1;
}

/*
 * A thread's own stack ends at its thread pointer (glibc, musl and bionic put the thread control block above the stack
 * into the same mapping) or is [stack]. Only these bounds are valid for as long as the thread lives. An alternate stack may
 * lie in one mapping with the first thread's control block.
 */
static void find_anew(const struct ml_view *view, struct ml_thread *thread, ml_u64 stack_pointer)
{
	ml_u64 thread_pointer = ml_thread_pointer();
	struct ml_maps_range range;

	if (ml_stack_bounds_of_alternate(stack_pointer, &thread->foreign_low, &thread->foreign_high) ||
	    !ml_thread_enter(view, thread))
		return;
	if (ml_maps_find(thread, stack_pointer, &range)) {
		if (range.is_main_stack) {
			thread->stack_low = range.low - STACK_GROWTH_BYTES;
			thread->stack_high = range.high;
		} else if (thread_pointer > stack_pointer && thread_pointer < range.high) {
			thread->stack_low = range.low;
			thread->stack_high = thread_pointer & ~7ull;
		} else {
			thread->foreign_low = range.low;
			thread->foreign_high = range.high;
		}
	}
	ml_thread_leave(view, thread);
}

static int use_known(const struct ml_thread *thread, struct ml_caller *caller)
{
	ml_u64 stack_pointer = caller->stack_pointer;

	if (stack_pointer >= thread->stack_low && stack_pointer < thread->stack_high) {
		caller->readable_end = caller->stack_end = thread->stack_high;
		return 1;
	}
	/* Another thread may unmap a foreign stack at any time. Only the current page is safe to read. */
	caller->readable_end = (stack_pointer | (PAGE_BYTES - 1)) + 1;
	caller->stack_end = thread->foreign_high;
	if (stack_pointer >= thread->foreign_low && stack_pointer < thread->foreign_high)
		return 1;
	caller->stack_end = 0;
	return 0;
}

void ml_stack_bounds_search(const struct ml_view *view, struct ml_thread *thread, struct ml_caller *caller)
{
	if (use_known(thread, caller))
		return;
	find_anew(view, thread, caller->stack_pointer);
	use_known(thread, caller);
}

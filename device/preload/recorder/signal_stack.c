// SPDX-License-Identifier: Apache-2.0
#include "preload/recorder/signal_stack.h"

#include "preload/freestanding/syscalls.h"
#include "preload/segment/thread.h"
#include "signal_frame.h"

#define CHUNK_WORDS 256u /* read into the thread's scratch memory */
#define FEW_WORDS \
	16u /* read onto the handler's stack, which may be small, if the handler interrupts another use of that memory */
#define SEARCHED_BYTES (32u << 10) /* below the end: vector registers lie between it and the frame */

typedef unsigned long word; /* of the architecture */

static int read_word(ml_u64 address, word *to)
{
	return ml_read_memory(to, address, sizeof(*to)) == sizeof(*to);
}

static int read_saved(ml_u64 frame, int number, word *to)
{
	return read_word(frame + (ml_u64)number * sizeof(word), to);
}

/*
 * The address of the outermost frame's uc_stack, 0 = there is none. The kernel puts that frame at the stack's end and
 * writes the stack's bounds into it. Handlers that interrupt this one have frames below, and handlers may copy theirs.
 */
static ml_u64 find_frame_by(word *words, ml_u64 n_words, ml_u64 stack_low, ml_u64 stack_high, ml_u64 sp)
{
	ml_u64 high = stack_high & ~(ml_u64)(sizeof(word) - 1), low = sp & ~(ml_u64)(sizeof(word) - 1);
	word saved_sp;

	if (high - low > SEARCHED_BYTES)
		low = high - SEARCHED_BYTES;
	high -= ML_SIGNAL_WORDS * sizeof(word);
	while (high > low) {
		ml_u64 n = (high - low) / sizeof(word) < n_words ? (high - low) / sizeof(word) : n_words;
		long bytes = (long)((n + 2) * sizeof(word));

		high -= n * sizeof(word);
		if (ml_read_memory(words, high, (unsigned long)bytes) != bytes)
			return 0;
		while (n--)
			if (words[n] == stack_low && words[n + 2] == stack_high - stack_low &&
			    read_saved(high + n * sizeof(word), ML_SIGNAL_SP, &saved_sp) &&
			    saved_sp - stack_low >= stack_high - stack_low)
				return high + n * sizeof(word);
	}
	return 0;
}

static __attribute__((noinline)) ml_u64 find_frame_by_few(ml_u64 stack_low, ml_u64 stack_high, ml_u64 sp)
{
	word words[FEW_WORDS + 2];

	return find_frame_by(words, FEW_WORDS, stack_low, stack_high, sp);
}

static ml_u64 find_frame(const struct ml_view *view, struct ml_thread *thread, ml_u64 stack_low, ml_u64 stack_high, ml_u64 sp)
{
	ml_u64 found;

	if (!ml_thread_enter(view, thread))
		return find_frame_by_few(stack_low, stack_high, sp);
	found = find_frame_by((word *)(void *)thread->scratch, CHUNK_WORDS, stack_low, stack_high, sp);
	ml_thread_leave(view, thread);
	return found;
}

/* The saved registers may be the program's own work, and lead nowhere. */
static int read_interrupted(ml_u64 frame, struct ml_caller *found)
{
	word fp, sp, pc, innermost;

	if (!read_saved(frame, ML_SIGNAL_FP, &fp) || !read_saved(frame, ML_SIGNAL_SP, &sp) ||
	    !read_saved(frame, ML_SIGNAL_PC, &pc) || sp % sizeof(word) || !read_word(sp, &innermost))
		return 0;
	*found = (struct ml_caller){ .return_address = (ml_u64)pc + 1, .stack_pointer = sp, .frame_pointer = fp };
	return 1;
}

void ml_signal_stack_find_foreign(const struct ml_view *view, struct ml_thread *thread, struct ml_caller *caller,
				  struct ml_interrupted *room)
{
	struct ml_caller *found = &room->caller;
	ml_u64 low, high, frame;

	if (!ml_stack_bounds_of_alternate(caller->stack_pointer, &low, &high))
		return;
	*room = (struct ml_interrupted){ .stack_low = low };
	caller->interrupted = room;
	frame = find_frame(view, thread, low, high, caller->stack_pointer);
	if (!frame)
		return;
	/* The handler runs, so nothing between its stack pointer and the registers that will be restored goes away. */
	caller->readable_end = caller->stack_end = frame + ML_SIGNAL_WORDS * sizeof(word);
	if (!read_interrupted(frame, found))
		return;
	room->begin = frame - ML_SIGNAL_BEGIN * sizeof(word);
	ml_stack_bounds_find(view, thread, found);
	if (found->frame_pointer - found->stack_pointer >= found->readable_end - found->stack_pointer)
		found->frame_pointer = 0;
}

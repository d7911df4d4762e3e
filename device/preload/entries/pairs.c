// SPDX-License-Identifier: Apache-2.0
#include "preload/entries/pairs.h"

#include "preload/freestanding/bytes.h"
#include "preload/entries/originals.h"
#include "preload/entries/pair_entries.h"
#include "preload/recorder/recorder.h"
#include "preload/freestanding/syscalls.h"
#include "preload/segment/thread.h"

#define HANDLER __attribute__((visibility("hidden"), used))
#define PAGE 4096ul

static struct ml_pair rules[ML_PAIRS];
static ml_u32 n_rules;

/* Releases that preceded the acquisition of what they release, by hash of the address, with the order of each. */
#define EARLY 64u
static struct {
	ml_u64 address;
	ml_u64 turn;
} early[EARLY];
static ml_u64 turns;
static ml_u64 highest; /* the highest 4-byte handle: no released range goes beyond it */
static unsigned long size_functions[ML_PAIRS]; /* by rule number; 0 = none */

/* rule: its number plus 1; 0 = calls are only forwarded. */
static struct {
	unsigned long real; /* 0 = the entry is free */
	ml_u32 rule;
} entries[ML_PAIRS];

void ml_pairs_begin(const struct ml_view *view)
{
	n_rules = view->pairs->n_rules < ML_PAIRS ? view->pairs->n_rules : ML_PAIRS;
	ml_copy(rules, view->pairs->rules, n_rules * sizeof(rules[0]));
	for (ml_u32 i = 0; i < ML_PAIRS; i++)
		__atomic_store_n(&size_functions[i], 0, __ATOMIC_RELAXED);
}

void ml_pairs_begin_moved(const struct ml_view *view)
{
	ml_pairs_begin(view);
	for (ml_u32 i = 0; i < n_rules; i++)
		ml_pairs_size_by(i, memleak_pair_size_functions[i]);
}

void ml_pairs_end(void)
{
	for (ml_u32 i = 0; i < ML_PAIRS; i++)
		__atomic_store_n(&entries[i].rule, 0, __ATOMIC_RELAXED);
	n_rules = 0;
}

void ml_pairs_size_by(ml_u32 rule, unsigned long size_function)
{
	if (rule < n_rules)
		__atomic_store_n(&size_functions[rule], size_function, __ATOMIC_RELAXED);
}

unsigned long ml_pairs_bind(ml_u32 rule, unsigned long real)
{
	ml_u32 i = 0;

	if (rule >= n_rules || !ML_HAS_PAIR_ENTRIES || (rules[rule].is_sized && !size_functions[rule]))
		return 0;
	while (i < ML_PAIRS && entries[i].real && entries[i].real != real)
		i++;
	if (i == ML_PAIRS)
		return 0;
	entries[i].real = real;
	__atomic_store_n(&entries[i].rule, rule + 1, __ATOMIC_RELEASE);
	return (unsigned long)ml_pair_entries + i * ML_PAIR_ENTRY_BYTES;
}

/* ---- by the rule -------------------------------------------------------------------------------------- */

static ml_u64 argument(const struct ml_pair_frame *frame, ml_u32 n)
{
	return n >= 1 && n <= 6 ? frame->general[n - 1] : 0;
}

/* 1 for rules with a size function, so that the call is not taken for realloc(…, 0). */
static ml_u64 size_of(const struct ml_pair *rule, const struct ml_pair_frame *frame)
{
	ml_u64 size = rule->factor;

	if (rule->size_a)
		size *= argument(frame, rule->size_a);
	if (rule->size_b)
		size *= argument(frame, rule->size_b);
	return size;
}

static int succeeded(const struct ml_pair *rule, ml_u64 value)
{
	switch (rule->success) {
	case ML_PAIR_NOT_ZERO: return value != 0;
	case ML_PAIR_ZERO: return (ml_u32)value == 0;
	case ML_PAIR_NOT_NEGATIVE: return (ml_s32)value >= 0;
	case ML_PAIR_NOT_MINUS_1: return value != ~0ull;
	default: return 1;
	}
}

/* An address of the live table: without tags, as wide as the handle. */
static ml_u64 address_of(const struct ml_pair *rule, ml_u64 handle)
{
	handle = rule->handle_bytes == 4 ? (ml_u32)handle : ml_pair_short_handle(handle);
	return handle | (ml_u64)rule->family << ML_PAIR_FAMILY_SHIFT;
}

/* Handle number i at a pointer that the function itself has used or will use. */
static ml_u64 stored(const struct ml_pair *rule, ml_u64 pointer, ml_u32 i)
{
	const void *handles = (const void *)(unsigned long)(pointer + rule->handle_offset);

	return rule->handle_bytes == 4 ? ((const ml_u32 *)handles)[i] : ((const ml_u64 *)handles)[i];
}

/* Descriptor number i that came with a message. The kernel wrote what is read here. */
static int received(ml_u64 message, ml_u32 i, ml_u64 *handle)
{
	const ml_u64 *control = (const ml_u64 *)(unsigned long)(message + ML_MESSAGE_CONTROL);
	ml_u64 at = control[0], rest = control[1];

	while (rest > sizeof(struct ml_message_part)) {
		const struct ml_message_part *part = (const struct ml_message_part *)(unsigned long)at;
		ml_u64 bytes = (part->bytes + 7) & ~7ull;

		if (part->bytes < sizeof(*part) || part->bytes > rest)
			return 0;
		if (part->kind == ML_MESSAGE_RIGHTS) {
			*handle = ((const ml_u32 *)(part + 1))[i];
			return (i + 1) * sizeof(ml_u32) <= part->bytes - sizeof(*part);
		}
		if (bytes > rest)
			return 0;
		at += bytes;
		rest -= bytes;
	}
	return 0;
}

/* Returns 0 if a new session has begun meanwhile. Only our own functions know the size of a block of the arena. */
static ml_u64 measured_size(ml_u32 rule, ml_u64 handle)
{
	unsigned long size_function = __atomic_load_n(&size_functions[rule], __ATOMIC_RELAXED);
	void *pointer = (void *)(unsigned long)handle;

	if (ml_arena_owns(pointer))
		return ml_arena_size(pointer);
	return size_function ? ((size_t (*)(void *, int))size_function)(pointer, 0) : 0; /* sallocx() takes flags */
}

/* Read by the kernel: the pointer is valid only if the host's rule is right. 0 if it cannot be read. */
static ml_u32 word_at(ml_u64 address)
{
	ml_u32 word = 0;

	ml_read_memory(&word, address, sizeof(word));
	return word;
}

/* Whether a call in this process with these arguments counts. */
static int applies(const struct ml_view *view, const struct ml_pair *rule, const struct ml_pair_frame *frame)
{
	ml_u64 given = argument(frame, rule->when.argument);
	ml_u32 value = (ml_u32)given;

	if (rule->is_of_process && (ml_u32)ML_SYSCALL0(getpid) != view->segment->pid)
		return 0;
	if (!rule->when.argument)
		return 1;
	if (rule->when.is_indirect)
		value = given ? word_at(given + rule->when.offset) : 0;
	value &= rule->when.mask;
	for (ml_u32 i = 0; i < ML_PAIR_VALUES; i++)
		if (value == rule->when.values[i])
			return 1;
	return 0;
}

/* ---- calls that have not returned --------------------------------------------------------------------- */

/* Calls that an exception or longjmp() ended lie below the stack pointer to which this call returns. */
static void drop_left(struct ml_thread *thread, ml_u64 stack_pointer)
{
	while (thread->n_pair_calls && thread->pair_calls[thread->n_pair_calls - 1].stack_pointer <= stack_pointer)
		thread->n_pair_calls--;
}

/* Returns 1 unless the call is part of another one. Threads share the first slot, so all calls count there. */
static int begin_call(const struct ml_view *view, struct ml_thread *thread, const struct ml_pair *rule, ml_u64 stack_pointer)
{
	if (thread == view->threads)
		return 1;
	drop_left(thread, stack_pointer);
	for (ml_u32 i = 0; i < thread->n_pair_calls && rule->nesting != ML_PAIR_ALL; i++)
		if (thread->pair_calls[i].family == rule->family)
			return 0;
	if (thread->n_pair_calls < ML_PAIR_PENDING) {
		thread->pair_calls[thread->n_pair_calls] = (struct ml_pair_pending){ stack_pointer, rule->family };
		__atomic_signal_fence(__ATOMIC_SEQ_CST);
		thread->n_pair_calls++;
	}
	return 1;
}

/* Words of the caller's frame that may be arguments; fewer if the stack ends before. */
static ml_u64 stack_words(const struct ml_thread *thread, ml_u64 from)
{
	ml_u64 end = (from + PAGE - 1) & ~(PAGE - 1), words = (end - from) / sizeof(ml_u64);
	unsigned char is_resident[16];

	if (words >= ML_PAIR_STACK_WORDS || (from >= thread->stack_low && end < thread->stack_high))
		return ML_PAIR_STACK_WORDS;
	return ML_SYSCALL3(mincore, end, PAGE, is_resident) == -ENOMEM ? words : ML_PAIR_STACK_WORDS;
}

/* ---- as the entries call them ------------------------------------------------------------------------- */

/* Handles of the range that are not live are not lost: ranges have gaps. */
static void release_range(const struct ml_pair *rule, ml_u32 function, ml_u64 first, ml_u64 last)
{
	ml_u64 end = __atomic_load_n(&highest, __ATOMIC_RELAXED);
	struct ml_entry block;

	for (end = last < end ? last : end; first <= end; first++)
		if (ml_recorder_release_if_held(address_of(rule, first), &block))
			ml_recorder_freed(function, (void *)(unsigned long)first, &block);
}

static ml_u32 early_slot(ml_u64 address)
{
	return (ml_u32)(address * 0x9e3779b97f4a7c15ull >> 58);
}

/*
 * A release that found nothing. A block that is inserted meanwhile is released by this function or by settle_early(),
 * whichever comes later.
 */
static void release_early(ml_u64 address)
{
	ml_u32 slot = early_slot(address);
	struct ml_entry block;

	__atomic_store_n(&early[slot].address, 0, __ATOMIC_SEQ_CST);
	__atomic_store_n(&early[slot].turn, __atomic_add_fetch(&turns, 1, __ATOMIC_SEQ_CST), __ATOMIC_SEQ_CST);
	__atomic_store_n(&early[slot].address, address, __ATOMIC_SEQ_CST);
	if (ml_recorder_release_if_held(address, &block))
		ml_recorder_freed(ML_FN_UNKNOWN, NULL, &block);
}

/* Releases a new block that was released between the entry and the return of the call. */
static void settle_early(ml_u64 address, ml_u64 turn)
{
	ml_u32 slot = early_slot(address);
	struct ml_entry block;

	if (__atomic_load_n(&early[slot].address, __ATOMIC_SEQ_CST) != address ||
	    __atomic_load_n(&early[slot].turn, __ATOMIC_SEQ_CST) <= turn)
		return;
	__atomic_store_n(&early[slot].address, 0, __ATOMIC_SEQ_CST);
	if (ml_recorder_release_if_held(address, &block))
		ml_recorder_freed(ML_FN_UNKNOWN, NULL, &block);
}

static void note_highest(ml_u64 handle)
{
	ml_u64 known = __atomic_load_n(&highest, __ATOMIC_RELAXED);

	while (handle > known && !__atomic_compare_exchange_n(&highest, &known, handle, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

static void release(const struct ml_pair *rule, ml_u32 function, const struct ml_pair_frame *frame)
{
	ml_u64 handle = argument(frame, rule->handle), address;
	struct ml_entry block;
	int is_null = !handle && rule->handle_bytes != 4; /* like free(NULL), unless a handle is 0 */

	if (!handle && rule->is_indirect)
		return;
	if (rule->through) {
		release_range(rule, function, (ml_u32)handle,
			      rule->through == ML_PAIR_THROUGH_END ? ~0u : (ml_u32)argument(frame, rule->through));
		return;
	}
	address = address_of(rule, rule->is_indirect ? stored(rule, handle, 0) : handle);
	if (rule->is_early && !ml_recorder_release_if_held(address, &block))
		release_early(address);
	else if (rule->is_early ||
		 (is_null ? ml_recorder_release_if_held(address, &block) : ml_recorder_release(address, &block)))
		ml_recorder_freed(function, (void *)(unsigned long)(address & ML_PAIR_HANDLE_MASK), &block);
}

static void claim_old(struct ml_pair_frame *frame)
{
	ml_u64 handle = frame->rule->old ? argument(frame, frame->rule->old) : 0;
	ml_u64 address = address_of(frame->rule, handle);
	int is_handle = frame->rule->old && (handle || frame->rule->handle_bytes == 4);

	frame->old = 0;
	if (is_handle && (frame->rule->is_early ? ml_recorder_release_if_held(address, &frame->old_block) :
						  ml_recorder_release(address, &frame->old_block)))
		frame->old = address;
}

/* The rule's number plus 1. 0: the call is only forwarded, as for stubs of an earlier session. */
static ml_u32 rule_of(ml_u64 call, struct ml_pair_frame *frame)
{
	ml_u32 number = (ml_u32)(call >> ML_PAIR_CALL_SHIFT);
	ml_u64 moved = call & ((1ull << ML_PAIR_CALL_SHIFT) - 1);

	frame->original = moved ? moved : entries[number].real;
	if (!moved)
		return __atomic_load_n(&entries[number].rule, __ATOMIC_ACQUIRE);
	return number < n_rules && memleak_pair_originals[number] == moved ? number + 1 : 0;
}

HANDLER void ml_pair_enter(ml_u64 call, struct ml_pair_frame *frame, const struct ml_registers *registers)
{
	ml_u32 rule = rule_of(call, frame);
	ml_u64 stack_pointer = ml_registers_stack_pointer(registers);
	const struct ml_view *view;
	struct ml_thread *thread;

	frame->wants_return = 0;
	if (!rule || !ml_recorder_is_on())
		return;
	view = ml_view_in_force();
	frame->rule = &rules[rule - 1];
	frame->function = ML_FN_PAIR + rule - 1;
	if (!applies(view, frame->rule, frame))
		return;
	if (frame->rule->is_release) {
		release(frame->rule, frame->function, frame);
		return;
	}
	thread = ml_thread_current(view);
	if (!begin_call(view, thread, frame->rule, stack_pointer))
		return;
	frame->wants_return = 1;
	frame->n_stack_words = stack_words(thread, stack_pointer);
	frame->session = view->session;
	frame->stack_pointer = stack_pointer;
	frame->size = size_of(frame->rule, frame);
	frame->pointer = argument(frame, frame->rule->handle);
	frame->turn = __atomic_load_n(&turns, __ATOMIC_SEQ_CST);
	claim_old(frame);
}

/* The block that the call was to release. A failed call leaves it live, except for realloc(…, 0). */
static void settle_old(const struct ml_pair_frame *frame, int is_done)
{
	const struct ml_pair *rule = frame->rule;

	if (!frame->old && is_done && rule->is_early && rule->old && argument(frame, rule->old))
		release_early(address_of(rule, argument(frame, rule->old)));
	if (!frame->old)
		return;
	if (is_done || (!frame->size && rule->zero_frees))
		ml_recorder_freed(ML_FN_UNKNOWN, NULL, &frame->old_block);
	else
		ml_recorder_restore(frame->old, &frame->old_block);
}

HANDLER void ml_pair_leave(struct ml_pair_frame *frame, const struct ml_registers *registers)
{
	const struct ml_pair *rule = frame->rule;
	int is_done = succeeded(rule, frame->general[ML_PAIR_RESULT]);
	const struct ml_view *view;
	struct ml_thread *thread;

	if (!ml_recorder_is_on())
		return;
	view = ml_view_in_force();
	if (frame->session != view->session)
		return;
	thread = ml_thread_current(view);
	if (thread != view->threads)
		drop_left(thread, frame->stack_pointer);
	settle_old(frame, is_done);
	for (ml_u32 i = 0; is_done && i < rule->n_handles; i++) {
		ml_u64 handle = rule->handle ? frame->pointer : frame->general[ML_PAIR_RESULT], size;

		if (rule->is_indirect == ML_PAIR_STORED)
			handle = stored(rule, frame->pointer, i);
		else if (rule->is_indirect && !received(frame->pointer, i, &handle))
			break;
		if (rule->handle_bytes == 4)
			note_highest((ml_u32)handle);
		size = rule->is_sized ? measured_size(frame->function - ML_FN_PAIR, handle) : frame->size;
		ml_recorder_acquire(frame->function, address_of(rule, handle), size, rule, registers);
		if (rule->is_early)
			settle_early(address_of(rule, handle), frame->turn);
	}
}

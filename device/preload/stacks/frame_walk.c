// SPDX-License-Identifier: Apache-2.0
#include "preload/stacks/frame_walk.h"

#include "frame_step.h"
#include "preload/stacks/frame_resolve.h"

#define MAX_FRAMES 512

struct bounds {
	ml_u64 low;
	ml_u64 high;
	struct ml_memo *memo;
};

static inline ml_u32 own_slot(ml_u64 return_address)
{
	return (ml_u32)(return_address ^ return_address >> 9) % ML_THREAD_RULES;
}

static const struct ml_frame_rule *keep_rule(struct ml_thread *thread, const struct ml_frame_rule *rule, ml_u64 return_address)
{
	struct ml_frame_rule *own = &thread->rules[own_slot(return_address)];

	if (!rule || ml_frame_kind(rule) == ML_FRAME_NONE)
		return rule;
	*own = *rule;
	own->hash = return_address;
	return own;
}

static inline const struct ml_frame_rule *find_rule(const struct ml_view *view, struct ml_thread *thread, ml_u64 return_address,
						    ml_u64 image)
{
	const struct ml_frame_rule *own;

	if (!thread)
		return ml_frame_find(view->rules, ml_frame_hash(return_address, image));
	own = &thread->rules[own_slot(return_address)];
	if (__builtin_expect(own->hash == return_address, 1))
		return own;
	return keep_rule(thread, ml_frame_find(view->rules, ml_frame_hash(return_address, image)), return_address);
}

/* A look-up needs stack, of which a coroutine's may have too little. */
static int may_resolve(const struct ml_thread *thread, const struct ml_caller *caller)
{
	const struct ml_interrupted *interrupted = caller->interrupted;

	return thread && (interrupted || caller->stack_end == thread->stack_high) &&
	       caller->stack_end == caller->readable_end &&
	       caller->stack_pointer - (interrupted ? interrupted->stack_low : thread->stack_low) >
		       ML_FRAME_RESOLVE_STACK_BYTES;
}

/* NULL if there is none. Not inlined: what a look-up needs of the stack would be every walk's. */
static __attribute__((noinline, cold)) const struct ml_frame_rule *resolve_rule(const struct ml_view *view,
										const struct ml_code_map *map,
										struct ml_thread *thread, ml_u64 return_address)
{
	struct ml_frame_rule rule;

	if (!ml_frame_resolve(view, map, return_address, &rule) || ml_frame_kind(&rule) == ML_FRAME_NONE)
		return NULL;
	return keep_rule(thread, &rule, return_address);
}

/* After code was unmapped its addresses may be other code's. */
static void begin(struct ml_thread *thread, const struct ml_code_map *map)
{
	if (!thread || thread->rules_generation == map->generation)
		return;
	for (ml_u32 i = 0; i < ML_THREAD_RULES; i++)
		thread->rules[i].hash = 0;
	thread->rules_generation = map->generation;
}

static inline int is_readable(const struct bounds *bounds, ml_u64 address)
{
	return address - bounds->low < bounds->high - bounds->low && bounds->high - address >= sizeof(ml_u64) &&
	       address % sizeof(ml_u64) == 0;
}

/* Notes the words that decide the key; the frame pointer's copies decide it only where a rule uses them. */
static inline int read_word(void *context, ml_u64 address, int is_fp, ml_u64 *word)
{
	const struct bounds *bounds = context;

	if (!is_readable(bounds, address))
		return 0;
	if (!is_fp)
		ml_memo_add_offset(bounds->memo, (address - bounds->low) / sizeof(ml_u64));
	*word = *(const ml_u64 *)(unsigned long)address;
	return 1;
}

static inline int step(struct bounds *bounds, const struct ml_frame_rule *rule, ml_u64 signature_mask, struct ml_frame *frame)
{
	if (bounds->memo && ml_frame_kind(rule) >= ML_FRAME_FP) {
		if (frame->fp_slot)
			ml_memo_add_offset(bounds->memo, (frame->fp_slot - bounds->low) / sizeof(ml_u64));
		else
			bounds->memo->uses_fp = 1;
	}
	return ml_frame_step(frame, rule, frame->sp, signature_mask, read_word, bounds);
}

/* TraceEnd of unwind/trace.py. */
static void end_chain(struct ml_frame_chain *chain, int is_complete, const struct ml_walk *walk)
{
	enum { ROOT = 0, NO_UNWIND_ROW = 2, NO_PROGRESS = 4, DEEPER = 6 };

	if (!chain)
		return;
	chain->end = is_complete ? ROOT : walk->without_rule ? NO_UNWIND_ROW : NO_PROGRESS;
	if (chain->n_frames == ML_FRAME_CHAIN_MAX && !is_complete)
		chain->end = DEEPER;
}

/* Returns 0 if there is no room. */
static inline int add_to_chain(struct ml_frame_chain *chain, ml_u64 return_address)
{
	if (!chain || !return_address)
		return 1;
	if (chain->n_frames == ML_FRAME_CHAIN_MAX)
		return 0;
	chain->addresses[chain->n_frames++] = return_address;
	return 1;
}

static inline struct ml_frame frame_of(const struct ml_code_map *map, const struct ml_caller *caller)
{
	return (struct ml_frame){ ml_strip_signature(caller->return_address, map->signature_mask), caller->stack_pointer,
				  caller->frame_pointer, 0 };
}

/* Whether this is the frame that the kernel made for a handler on the alternate stack. */
static inline int is_signal_frame(const struct ml_caller *caller, const struct ml_frame *frame)
{
	return __builtin_expect(caller->interrupted != NULL, 0) && frame->sp == caller->interrupted->begin;
}

int ml_frame_walk(const struct ml_view *view, const struct ml_code_map *map, const struct ml_caller *caller,
		  struct ml_walk *walk, const struct ml_notes *notes)
{
	struct bounds bounds = { caller->stack_pointer, caller->readable_end, notes->memo };
	struct ml_frame frame = frame_of(map, caller);
	int is_complete = 0, can_resolve = may_resolve(notes->thread, caller);

	begin(notes->thread, map);
	walk->caller = caller;
	for (int i = 0; i < MAX_FRAMES; i++) {
		const struct ml_frame_rule *rule;

		if (is_signal_frame(walk->caller, &frame)) {
			walk->caller = &walk->caller->interrupted->caller;
			bounds = (struct bounds){ walk->caller->stack_pointer, walk->caller->readable_end, NULL };
			frame = frame_of(map, walk->caller);
			if (!add_to_chain(notes->chain, frame.return_address))
				break;
			walk->hash = ml_stack_mix(walk->hash, frame.return_address);
		}
		rule = find_rule(view, notes->thread, frame.return_address, map->generation);
		if (!rule && frame.return_address && can_resolve)
			rule = resolve_rule(view, map, notes->thread, frame.return_address);
		/* Some threads start with a return address of 0 in place of CFI that says so. */
		is_complete = !frame.return_address || (rule && ml_frame_kind(rule) == ML_FRAME_END);
		if (!is_complete && !rule)
			walk->without_rule = frame.return_address;
		if (is_complete || !rule || !step(&bounds, rule, map->signature_mask, &frame) ||
		    !add_to_chain(notes->chain, frame.return_address))
			break;
		walk->hash = ml_stack_mix(walk->hash, frame.return_address);
	}
	walk->stack_pointer = frame.sp;
	walk->frame_pointer = frame.fp;
	end_chain(notes->chain, is_complete, walk);
	return is_complete;
}

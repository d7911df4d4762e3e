// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/inject/thread_choice.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>

#include "agent/process/code_map.h"
#include "agent/process/signature_mask.h"
#include "agent/inject/ranges.h"
#include "agent/process/process_maps.h"

#define FRAMES_MAX 1024
#define SCAN_BYTES_MAX (1u << 20) /* of a stack without CFI */
#define STACK_ROOM_BYTES (64u << 10) /* below the thread's frames: dlopen() and what it calls need less */

struct ml_inject_choice {
	ml_u32 pid;
	struct ml_inject_ranges ranges;
	const struct ml_cfi_arch *arch;
	struct ml_cfi_arch native;
	struct ml_code_map map;
	struct ml_code_process *process;
	ml_u64 renewals; /* used as the image number, so that nothing is reused after a renewal */
	char *maps;
};

struct ml_inject_choice *ml_inject_choice_create(const struct ml_target_objects *objects)
{
	struct ml_inject_choice *choice = calloc(1, sizeof(*choice));

	if (!choice || !ml_cfi_native() || ml_inject_ranges_read(&choice->ranges, objects)) {
		free(choice);
		return NULL;
	}
	choice->pid = objects->pid;
	choice->native = *ml_cfi_native();
	choice->native.signature_mask |= ml_signature_mask();
	choice->arch = &choice->native;
	return choice;
}

void ml_inject_choice_destroy(struct ml_inject_choice *choice)
{
	if (!choice)
		return;
	ml_code_map_clear(&choice->map);
	ml_inject_ranges_free(&choice->ranges);
	free(choice->maps);
	free(choice);
}

void ml_inject_choice_renew(struct ml_inject_choice *choice)
{
	size_t bytes;

	choice->process = ml_code_map_process(&choice->map, choice->pid, ++choice->renewals);
	free(choice->maps);
	choice->maps = ml_process_maps_read(choice->pid, &bytes);
}

/* ---- the stack ----------------------------------------------------------------------------------------- */

struct span {
	ml_u64 start, end;
};

/* The mapping that holds an address; [0, 0) when none does. */
static struct span mapping_of(const struct ml_inject_choice *choice, ml_u64 address, bool *is_first_stack)
{
	const char *line = choice->maps, *next;
	struct span span;
	char permissions[4];

	while (line && (next = ml_process_maps_line(line, &span.start, &span.end, permissions))) {
		if (address >= span.start && address < span.end) {
			*is_first_stack = memmem(line, (size_t)(next - line), "[stack]", 7) != NULL;
			return span;
		}
		line = next;
	}
	return (struct span){ 0, 0 };
}

/*
 * A thread's own stack has its thread descriptor at the upper end (glibc, musl) or near it (bionic). Stacks that a program switches
 * itself are elsewhere, and their free room is unknown.
 */
static bool is_on_own_stack(const struct ml_inject_choice *choice, pid_t tid, const ml_ptrace_registers *registers,
			    ml_u64 sp, ml_u64 *end)
{
	ml_u64 pointer = ml_ptrace_thread_pointer(tid, registers);
	bool is_first_stack = false;
	struct span span = mapping_of(choice, sp, &is_first_stack);

	*end = span.end;
	if (!span.end || sp - span.start < (is_first_stack ? ML_FRAME_BYTES_MAX : STACK_ROOM_BYTES))
		return false;
	if ((ml_u32)tid == choice->pid)
		return is_first_stack;
	return pointer > sp && pointer < span.end + STACK_ROOM_BYTES;
}

/* 0 and !*is_read if the word is unreadable. */
static ml_u64 read_word(struct ml_inject_choice *choice, ml_u64 address, bool *is_read)
{
	ml_u64 word = 0;

	*is_read = !ml_remote_memory_read(&choice->map.memory, choice->pid, address, &word, sizeof(word));
	return word;
}

static enum ml_inject_verdict verdict_of(enum ml_inject_lock lock)
{
	return lock == ML_LOCK_ALLOCATOR ? ML_THREAD_ALLOCATOR : lock == ML_LOCK_LOADER ? ML_THREAD_LOADER : ML_THREAD_GOOD;
}

/* Scans the stack beyond the CFI: any word that points into such code counts, stale or not. */
static enum ml_inject_verdict scan(struct ml_inject_choice *choice, ml_u64 sp, ml_u64 end)
{
	ml_u64 words[512];

	if (end - sp > SCAN_BYTES_MAX)
		end = sp + SCAN_BYTES_MAX;
	for (sp &= ~7ull; sp < end; sp += sizeof(words)) {
		size_t n = end - sp < sizeof(words) ? (size_t)(end - sp) / 8 : 512;

		if (ml_target_read(choice->pid, sp, words, n * 8))
			return ML_THREAD_STACK;
		for (size_t i = 0; i < n; i++) {
			enum ml_inject_lock lock = ml_inject_ranges_find(&choice->ranges, ml_strip_signature(words[i], choice->arch->signature_mask));

			if (lock != ML_LOCK_NONE)
				return verdict_of(lock);
		}
	}
	return ML_THREAD_GOOD;
}

enum step { STEPPED, OUTERMOST, LOST, SIGNAL_FRAME };

/* Steps to the caller by the rule at the pc. */
static enum step step(struct ml_inject_choice *choice, struct ml_ptrace_frame *frame, ml_u64 lookup_pc, bool is_first)
{
	struct ml_frame_rule rule = { 0 };
	struct ml_fde fde;
	int is_file;
	ml_u64 cfa, offset, fp;
	bool is_read = true, is_fp_read = true;

	if (ml_code_map_find(&choice->map, choice->process, choice->arch, lookup_pc, &fde, &is_file) != ML_CFI_FOUND)
		return LOST;
	if (fde.cie.is_signal_frame)
		return SIGNAL_FRAME;
	if (ml_cfi_rule(&choice->map.memory, choice->pid, choice->arch, &fde, lookup_pc, &rule) != ML_CFI_FOUND)
		return LOST;
	offset = (ml_u64)(__INT64_TYPE__)ml_frame_cfa_offset(&rule);
	switch (ml_frame_kind(&rule)) {
	case ML_FRAME_END:
		return OUTERMOST;
	case ML_FRAME_SP:
		cfa = frame->sp + offset;
		break;
	case ML_FRAME_FP:
		cfa = frame->fp + offset;
		break;
	case ML_FRAME_FP_DEREF:
		cfa = read_word(choice, frame->fp + offset, &is_read);
		break;
	default:
		if (!is_first || !frame->link) /* a leaf function keeps its return address in the register */
			return LOST;
		frame->pc = ml_strip_signature(frame->link, choice->arch->signature_mask);
		return STEPPED;
	}
	fp = rule.fp_words == ML_FRAME_FP_AT_FP ? frame->fp : cfa - 8ull * rule.fp_words;
	if (!is_read || cfa < frame->sp || (cfa == frame->sp && !is_first))
		return LOST;
	frame->pc = ml_strip_signature(read_word(choice, cfa - 8ull * rule.ra_words, &is_read), choice->arch->signature_mask);
	if (rule.fp_words)
		frame->fp = read_word(choice, fp, &is_fp_read);
	frame->sp = cfa;
	return is_read && is_fp_read ? STEPPED : LOST;
}

/* 0: the thread is not to be borrowed, and only code that is certainly the linker's counts. */
static enum ml_inject_verdict walk(struct ml_inject_choice *choice, struct ml_ptrace_frame frame, ml_u64 stack_end)
{
	for (int i = 0; i < FRAMES_MAX; i++) {
		enum ml_inject_lock lock = ml_inject_ranges_find(&choice->ranges, i ? frame.pc - 1 : frame.pc);

		if (lock == ML_LOCK_LOADER || (lock != ML_LOCK_NONE && stack_end))
			return verdict_of(lock);
		switch (step(choice, &frame, i ? frame.pc - 1 : frame.pc, i == 0)) {
		case OUTERMOST:
			return ML_THREAD_GOOD;
		case SIGNAL_FRAME:
			return ML_THREAD_SIGNAL;
		case LOST:
			return stack_end ? scan(choice, frame.sp, stack_end) : ML_THREAD_STACK;
		case STEPPED:
			break;
		}
		if (stack_end && frame.sp >= stack_end)
			return ML_THREAD_STACK;
	}
	return ML_THREAD_STACK;
}

/* ---- restartable sequences ------------------------------------------------------------------------------ */

struct rseq_configuration { /* PTRACE_GET_RSEQ_CONFIGURATION, Linux 5.13 */
	ml_u64 address;
	ml_u32 bytes, signature, flags, padding;
};

struct rseq_section { /* struct rseq_cs, Linux include/uapi/linux/rseq.h */
	ml_u32 version, flags;
	ml_u64 start, bytes, abort;
};

static bool is_in_section(const struct ml_inject_choice *choice, pid_t tid, ml_u64 pc)
{
	struct rseq_configuration configuration = { 0 };
	struct rseq_section section;
	ml_u64 address = 0;

	if (ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, (void *)sizeof(configuration), &configuration) <= 0 ||
	    !configuration.address || ml_target_read(choice->pid, configuration.address + 8, &address, 8) || !address ||
	    ml_target_read(choice->pid, address, &section, sizeof(section)))
		return false;
	return pc - section.start < section.bytes;
}

enum ml_inject_verdict ml_inject_choice_judge(struct ml_inject_choice *choice, pid_t tid,
					     const ml_ptrace_registers *registers)
{
	struct ml_ptrace_frame frame = ml_ptrace_frame_of(registers);
	ml_u64 stack_end;

	if (!is_on_own_stack(choice, tid, registers, frame.sp, &stack_end))
		return ML_THREAD_STACK;
	if (ml_ptrace_has_shadow_stack(tid))
		return ML_THREAD_SHADOW_STACK;
	if (is_in_section(choice, tid, frame.pc))
		return ML_THREAD_SECTION;
	return walk(choice, frame, stack_end);
}

bool ml_inject_choice_is_loading(struct ml_inject_choice *choice, const ml_ptrace_registers *registers)
{
	return walk(choice, ml_ptrace_frame_of(registers), 0) == ML_THREAD_LOADER;
}

const char *ml_inject_verdict_text(enum ml_inject_verdict verdict)
{
	static const char *const texts[] = {
		[ML_THREAD_GOOD] = "suitable",
		[ML_THREAD_ALLOCATOR] = "in the allocator",
		[ML_THREAD_LOADER] = "in the dynamic linker, fork() or exit()",
		[ML_THREAD_LOADING] = "suitable, but another one was in the dynamic linker and may hold its lock",
		[ML_THREAD_SIGNAL] = "in a signal handler",
		[ML_THREAD_STACK] = "on a stack that is not its own, or has too little room",
		[ML_THREAD_SECTION] = "in a restartable sequence",
		[ML_THREAD_SHADOW_STACK] = "under a shadow stack, which forbids injected calls",
	};

	return texts[verdict];
}

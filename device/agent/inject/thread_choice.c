// SPDX-License-Identifier: Apache-2.0
#include "agent/inject/thread_choice.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>

#include "agent/process/code_map.h"
#include "agent/process/signature_mask.h"
#include "agent/inject/ranges.h"
#include "agent/process/patient_read.h"
#include "agent/process/process_maps.h"
#include "frame_step.h"

#define FRAMES_MAX 1024
#define RED_ZONE_BYTES 128 /* below sp: an epilogue may have popped the frame pointer already (psABI x86-64 §3.2.2) */
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
	ml_code_map_forget(&choice->map, 0);
	ml_inject_ranges_free(&choice->ranges);
	free(choice->maps);
	free(choice);
}

void ml_inject_choice_renew(struct ml_inject_choice *choice)
{
	choice->process = ml_code_map_process(&choice->map, choice->pid, ++choice->renewals);
	free(choice->maps);
	choice->maps = ml_process_maps_read(choice->pid, NULL);
}

/* ---- the stack ----------------------------------------------------------------------------------------- */

/*
 * A thread's own stack has its thread descriptor at the upper end (glibc, musl) or near it (bionic). Stacks that a program switches
 * itself are elsewhere, and their free room is unknown.
 */
static bool is_on_own_stack(const struct ml_inject_choice *choice, pid_t tid, const ml_ptrace_registers *registers, ml_u64 sp,
			    ml_u64 *end)
{
	ml_u64 pointer = ml_ptrace_thread_pointer(tid, registers);
	struct ml_maps_line line;
	bool is_first_stack;

	if (!ml_process_maps_find(choice->maps, sp, &line))
		return false;
	*end = line.end;
	is_first_stack = ml_process_maps_has(&line, "[stack]");
	if (sp - line.start < (is_first_stack ? ML_FRAME_BYTES_MAX : STACK_ROOM_BYTES))
		return false;
	if ((ml_u32)tid == choice->pid)
		return is_first_stack;
	return pointer > sp && pointer < line.end + STACK_ROOM_BYTES;
}

static int read_word(void *context, ml_u64 address, int is_fp, ml_u64 *word)
{
	struct ml_inject_choice *choice = context;

	(void)is_fp;
	return !ml_remote_memory_read(&choice->map.memory, choice->pid, address, word, sizeof(*word));
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

		if (ml_patient_read(choice->pid, sp, words, n * 8))
			return ML_THREAD_STACK;
		for (size_t i = 0; i < n; i++) {
			enum ml_inject_lock lock =
				ml_inject_ranges_find(&choice->ranges,
						      ml_strip_signature(words[i], choice->arch->signature_mask));

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
	ml_u64 mask = choice->arch->signature_mask, low = is_first ? frame->sp - RED_ZONE_BYTES : frame->sp;
	struct ml_frame now = { frame->pc, frame->sp, frame->fp, 0 };
	struct ml_frame_rule rule = { 0 };
	struct ml_fde fde;
	int is_file;

	if (ml_code_map_find(&choice->map, choice->process, choice->arch, lookup_pc, &fde, &is_file) != ML_CFI_FOUND)
		return LOST;
	if (fde.cie.is_signal_frame)
		return SIGNAL_FRAME;
	if (ml_cfi_rule(&choice->map.memory, choice->pid, choice->arch, &fde, lookup_pc, &rule) != ML_CFI_FOUND)
		return LOST;
	if (ml_frame_kind(&rule) == ML_FRAME_END)
		return OUTERMOST;
	if (is_first && ml_frame_kind(&rule) == ML_FRAME_NONE && frame->link) {
		/* a leaf function keeps its return address in the register */
		frame->pc = ml_strip_signature(frame->link, mask);
		return STEPPED;
	}
	if (!ml_frame_step(&now, &rule, low, mask, read_word, choice))
		return LOST;
	frame->pc = now.return_address;
	frame->sp = now.sp;
	frame->fp = now.fp;
	return STEPPED;
}

/* 0: the thread is not to be borrowed, and only code that is certainly the linker's counts. */
static enum ml_inject_verdict walk(struct ml_inject_choice *choice, struct ml_ptrace_frame frame, ml_u64 stack_end)
{
	for (int i = 0; i < FRAMES_MAX; i++) {
		enum ml_inject_lock lock = ml_inject_ranges_find(&choice->ranges, i ? frame.pc - 1 : frame.pc);

		if (lock == ML_LOCK_LOADER || (lock != ML_LOCK_NONE && stack_end))
			return verdict_of(lock);
		switch (step(choice, &frame, i ? frame.pc - 1 : frame.pc, i == 0)) {
		case OUTERMOST: return ML_THREAD_GOOD;
		case SIGNAL_FRAME: return ML_THREAD_SIGNAL;
		case LOST: return stack_end ? scan(choice, frame.sp, stack_end) : ML_THREAD_STACK;
		case STEPPED: break;
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

enum ml_inject_verdict ml_inject_choice_judge(struct ml_inject_choice *choice, pid_t tid, const ml_ptrace_registers *registers)
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

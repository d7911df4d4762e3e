// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/inject/place.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>

#include "agent/process/code_map.h"
#include "agent/process/code_mask.h"
#include "agent/inject/ranges.h"
#include "agent/process/process_maps.h"

#define FRAMES_MAX 1024
#define SCAN_BYTES_MAX (1u << 20) /* of a stack that CFI does not lead through */
#define STACK_ROOM_BYTES (64u << 10) /* below the thread's frames: dlopen() and what it calls need less */

struct ml_inject_places {
	ml_u32 pid;
	struct ml_inject_ranges ranges;
	const struct ml_cfi_arch *arch;
	struct ml_cfi_arch native;
	struct ml_code_map map;
	struct ml_code_process *process;
	ml_u64 renewals; /* stands for the image: nothing is kept from one to the next */
	char *maps;
};

struct ml_inject_places *ml_inject_places_create(const struct ml_target_objects *objects)
{
	struct ml_inject_places *places = calloc(1, sizeof(*places));

	if (!places || !ml_cfi_native() || ml_inject_ranges_read(&places->ranges, objects)) {
		free(places);
		return NULL;
	}
	places->pid = objects->pid;
	places->native = *ml_cfi_native();
	places->native.code_mask &= ml_code_mask();
	places->arch = &places->native;
	return places;
}

void ml_inject_places_destroy(struct ml_inject_places *places)
{
	if (!places)
		return;
	ml_code_map_clear(&places->map);
	ml_inject_ranges_free(&places->ranges);
	free(places->maps);
	free(places);
}

void ml_inject_places_renew(struct ml_inject_places *places)
{
	size_t bytes;

	places->process = ml_code_map_process(&places->map, places->pid, ++places->renewals);
	free(places->maps);
	places->maps = ml_process_maps_read(places->pid, &bytes);
}

/* ---- the stack ----------------------------------------------------------------------------------------- */

struct span {
	ml_u64 start, end;
};

/* The mapping that holds an address; [0, 0) when none does. */
static struct span mapping_of(const struct ml_inject_places *places, ml_u64 address, bool *is_first_stack)
{
	const char *line = places->maps, *next;
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
 * A thread's own stack has its thread descriptor at the upper end (glibc, musl) or near it (bionic): stacks that a program
 * switches between by itself lie elsewhere, and there nobody knows how much room is left.
 */
static bool is_on_own_stack(const struct ml_inject_places *places, pid_t tid, const ml_ptrace_registers *registers,
			    ml_u64 sp, ml_u64 *end)
{
	ml_u64 pointer = ml_ptrace_thread_pointer(tid, registers);
	bool is_first_stack = false;
	struct span span = mapping_of(places, sp, &is_first_stack);

	*end = span.end;
	if (!span.end || sp - span.start < (is_first_stack ? ML_FRAME_BYTES_MAX : STACK_ROOM_BYTES))
		return false;
	if ((ml_u32)tid == places->pid)
		return is_first_stack;
	return pointer > sp && pointer < span.end + STACK_ROOM_BYTES;
}

/* The address after a code mapping's page is none of ours; 0 where it is unreadable. */
static ml_u64 read_word(struct ml_inject_places *places, ml_u64 address, bool *is_read)
{
	ml_u64 word = 0;

	*is_read = !ml_remote_memory_read(&places->map.memory, places->pid, address, &word, sizeof(word));
	return word;
}

static enum ml_inject_verdict verdict_of(enum ml_inject_lock lock)
{
	return lock == ML_LOCK_ALLOCATOR ? ML_PLACE_ALLOCATOR : lock == ML_LOCK_LOADER ? ML_PLACE_LOADER : ML_PLACE_GOOD;
}

/* Where CFI ends: whatever on the rest of the stack may be a return address into such code counts, left over or not. */
static enum ml_inject_verdict scan(struct ml_inject_places *places, ml_u64 sp, ml_u64 end)
{
	ml_u64 words[512];

	if (end - sp > SCAN_BYTES_MAX)
		end = sp + SCAN_BYTES_MAX;
	for (sp &= ~7ull; sp < end; sp += sizeof(words)) {
		size_t n = end - sp < sizeof(words) ? (size_t)(end - sp) / 8 : 512;

		if (ml_target_read(places->pid, sp, words, n * 8))
			return ML_PLACE_STACK;
		for (size_t i = 0; i < n; i++) {
			enum ml_inject_lock lock = ml_inject_ranges_find(&places->ranges, words[i] & places->arch->code_mask);

			if (lock != ML_LOCK_NONE)
				return verdict_of(lock);
		}
	}
	return ML_PLACE_GOOD;
}

enum step { STEPPED, OUTERMOST, LOST, SIGNAL_FRAME };

/* By the rule at its pc to the caller. */
static enum step step(struct ml_inject_places *places, struct ml_ptrace_place *place, ml_u64 lookup_pc, bool is_first)
{
	struct ml_frame_rule rule = { 0 };
	struct ml_fde fde;
	int is_file;
	ml_u64 cfa, offset, fp;
	bool is_read = true, is_fp_read = true;

	if (ml_code_map_find(&places->map, places->process, places->arch, lookup_pc, &fde, &is_file) != ML_CFI_FOUND)
		return LOST;
	if (fde.cie.is_signal_frame)
		return SIGNAL_FRAME;
	if (ml_cfi_rule(&places->map.memory, places->pid, places->arch, &fde, lookup_pc, &rule) != ML_CFI_FOUND)
		return LOST;
	offset = (ml_u64)(__INT64_TYPE__)ml_frame_cfa_offset(&rule);
	switch (ml_frame_kind(&rule)) {
	case ML_FRAME_END:
		return OUTERMOST;
	case ML_FRAME_SP:
		cfa = place->sp + offset;
		break;
	case ML_FRAME_FP:
		cfa = place->fp + offset;
		break;
	case ML_FRAME_FP_DEREF:
		cfa = read_word(places, place->fp + offset, &is_read);
		break;
	default:
		if (!is_first || !place->link) /* a function that calls nobody keeps its return address in the register */
			return LOST;
		place->pc = place->link & places->arch->code_mask;
		return STEPPED;
	}
	fp = rule.fp_words == ML_FRAME_FP_AT_FP ? place->fp : cfa - 8ull * rule.fp_words;
	if (!is_read || cfa < place->sp || (cfa == place->sp && !is_first))
		return LOST;
	place->pc = read_word(places, cfa - 8ull * rule.ra_words, &is_read) & places->arch->code_mask;
	if (rule.fp_words)
		place->fp = read_word(places, fp, &is_fp_read);
	place->sp = cfa;
	return is_read && is_fp_read ? STEPPED : LOST;
}

/* stack_end: 0 where the thread is not to be borrowed: then only what is proved to be in the linker's code counts. */
static enum ml_inject_verdict walk(struct ml_inject_places *places, struct ml_ptrace_place place, ml_u64 stack_end)
{
	for (int i = 0; i < FRAMES_MAX; i++) {
		enum ml_inject_lock lock = ml_inject_ranges_find(&places->ranges, i ? place.pc - 1 : place.pc);

		if (lock == ML_LOCK_LOADER || (lock != ML_LOCK_NONE && stack_end))
			return verdict_of(lock);
		switch (step(places, &place, i ? place.pc - 1 : place.pc, i == 0)) {
		case OUTERMOST:
			return ML_PLACE_GOOD;
		case SIGNAL_FRAME:
			return ML_PLACE_SIGNAL;
		case LOST:
			return stack_end ? scan(places, place.sp, stack_end) : ML_PLACE_STACK;
		case STEPPED:
			break;
		}
		if (stack_end && place.sp >= stack_end)
			return ML_PLACE_STACK;
	}
	return ML_PLACE_STACK;
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

static bool is_in_section(const struct ml_inject_places *places, pid_t tid, ml_u64 pc)
{
	struct rseq_configuration configuration = { 0 };
	struct rseq_section section;
	ml_u64 address = 0;

	if (ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, (void *)sizeof(configuration), &configuration) <= 0 ||
	    !configuration.address || ml_target_read(places->pid, configuration.address + 8, &address, 8) || !address ||
	    ml_target_read(places->pid, address, &section, sizeof(section)))
		return false;
	return pc - section.start < section.bytes;
}

enum ml_inject_verdict ml_inject_place_judge(struct ml_inject_places *places, pid_t tid,
					     const ml_ptrace_registers *registers)
{
	struct ml_ptrace_place place = ml_ptrace_place_of(registers);
	ml_u64 stack_end;

	if (!is_on_own_stack(places, tid, registers, place.sp, &stack_end))
		return ML_PLACE_STACK;
	if (ml_ptrace_has_shadow_stack(tid))
		return ML_PLACE_SHADOW_STACK;
	if (is_in_section(places, tid, place.pc))
		return ML_PLACE_SECTION;
	return walk(places, place, stack_end);
}

bool ml_inject_place_is_loading(struct ml_inject_places *places, const ml_ptrace_registers *registers)
{
	return walk(places, ml_ptrace_place_of(registers), 0) == ML_PLACE_LOADER;
}

const char *ml_inject_verdict_text(enum ml_inject_verdict verdict)
{
	static const char *const texts[] = {
		[ML_PLACE_GOOD] = "in no lock's way",
		[ML_PLACE_ALLOCATOR] = "in the allocator",
		[ML_PLACE_LOADER] = "in the dynamic linker, fork() or exit()",
		[ML_PLACE_LOADING] = "free, but another was in the dynamic linker, with a library half loaded maybe",
		[ML_PLACE_SIGNAL] = "in a signal handler",
		[ML_PLACE_STACK] = "on a stack that is not its own, or has too little room",
		[ML_PLACE_SECTION] = "in a restartable sequence",
		[ML_PLACE_SHADOW_STACK] = "under a shadow stack, which refuses calls made from outside",
	};

	return texts[verdict];
}

// SPDX-License-Identifier: Apache-2.0
#include "agent/inject/patch_threads.h"

#include <elf.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/process/process_maps.h"
#include "agent/ptrace/state.h"

#define STACK_BYTES_MAX (1u << 20) /* scanned, of each thread */
#define PIECE_WORDS 1024

static ml_u64 *pc_of(ml_ptrace_registers *registers)
{
#if defined(__x86_64__)
	return (ml_u64 *)&registers->rip;
#elif defined(__aarch64__)
	return (ml_u64 *)&registers->pc;
#else
	static ml_u64 none; /* 32-bit processes have no inline hooks */

	(void)registers;
	return &none;
#endif
}

static const struct ml_patch_move *moves_of(const struct ml_patch_threads *stopped, const struct ml_patch *patch, ml_u32 *n)
{
	*n = stopped->is_apply ? patch->n_moves : patch->n_returns;
	return stopped->is_apply ? patch->moves : patch->returns;
}

/* The planned move from pc; NULL: none. *is_inside: pc is inside a patch. */
static const struct ml_patch_move *find_move(const struct ml_patch_threads *stopped, ml_u64 pc, bool *is_inside)
{
	*is_inside = false;
	for (size_t i = 0; i < stopped->patches->n; i++) {
		const struct ml_patch *patch = &stopped->patches->patches[i];
		const struct ml_patch_move *moves;
		ml_u32 n;

		moves = moves_of(stopped, patch, &n);
		for (ml_u32 j = 0; j < n; j++)
			if (moves[j].pc == pc)
				return &moves[j];
		*is_inside |= pc > patch->address && pc < patch->address + patch->n_bytes;
	}
	return NULL;
}

/* The range of all planned moves; low > high: there is none. */
static void span_of(const struct ml_patch_threads *stopped, ml_u64 *low, ml_u64 *high)
{
	*low = ~0ull;
	*high = 0;
	for (size_t i = 0; i < stopped->patches->n; i++) {
		const struct ml_patch_move *moves;
		ml_u32 n;

		moves = moves_of(stopped, &stopped->patches->patches[i], &n);
		for (ml_u32 j = 0; j < n; j++) {
			*low = moves[j].pc < *low ? moves[j].pc : *low;
			*high = moves[j].pc > *high ? moves[j].pc : *high;
		}
	}
}

/*
 * Whether a word of the stack is one of these addresses: the frame of a signal handler holds the interrupted pc. What follows the stack
 * may be memory that a stopped thread serves (userfaultfd(2), FUSE): reads by the file do not wait for the former, and end at files.
 */
static bool stack_leads_inside(const struct ml_patch_threads *stopped, const char *maps, ml_u64 sp)
{
	struct ml_maps_line line = { .end = 0 };
	ml_u64 words[PIECE_WORDS], low, high;
	bool is_inside;

	span_of(stopped, &low, &high);
	sp &= ~(ml_u64)7;
	for (ml_u64 at = sp; low <= high && at - sp < STACK_BYTES_MAX;) {
		ml_u64 bytes = 4096 - at % 4096; /* to the end of the page: the next one may be unmapped */

		if (at >= line.end && (!ml_process_maps_find(maps, at, &line) || line.inode))
			return false;
		if (pread(stopped->memory, words, bytes, (off_t)at) != (ssize_t)bytes)
			return false;
		for (size_t i = 0; i < bytes / sizeof(*words); i++)
			if (words[i] >= low && words[i] <= high && find_move(stopped, words[i], &is_inside))
				return true;
		at += bytes;
	}
	return false;
}

static bool are_clear(const struct ml_patch_threads *stopped, const char *maps)
{
	bool is_inside;

	for (size_t i = 0; i < stopped->n_threads; i++) {
		const struct ml_ptrace_thread *thread = &stopped->threads[i];
		ml_ptrace_registers registers;

		if (!thread->is_stopped)
			continue;
		if (ml_ptrace_read_set(thread->tid, NT_PRSTATUS, &registers, sizeof(registers)) != (ssize_t)sizeof(registers))
			return false;
		find_move(stopped, *pc_of(&registers), &is_inside);
		if (is_inside)
			return false;
		if (stack_leads_inside(stopped, maps, ml_ptrace_frame_of(&registers).sp))
			return false;
	}
	return true;
}

bool ml_patch_threads_are_clear(const struct ml_patch_threads *stopped, ml_u32 pid)
{
	char *maps = ml_process_maps_read(pid, NULL);
	bool result = maps && are_clear(stopped, maps);

	free(maps);
	return result;
}

void ml_patch_threads_move(const struct ml_patch_threads *stopped)
{
	for (size_t i = 0; i < stopped->n_threads; i++) {
		const struct ml_patch_move *move;
		ml_ptrace_registers registers;
		bool is_inside;

		if (!stopped->threads[i].is_stopped || ml_ptrace_read_set(stopped->threads[i].tid, NT_PRSTATUS, &registers,
									  sizeof(registers)) != (ssize_t)sizeof(registers))
			continue;
		move = find_move(stopped, *pc_of(&registers), &is_inside);
		if (!move)
			continue;
		*pc_of(&registers) = move->to;
		ml_ptrace_write_set(stopped->threads[i].tid, NT_PRSTATUS, &registers, sizeof(registers));
	}
}

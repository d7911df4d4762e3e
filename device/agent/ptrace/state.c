// SPDX-License-Identifier: Apache-2.0
#include "agent/ptrace/state.h"

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#include "agent/process/proc_file.h"
#include "agent/protocol/blocks.h"

#define BIT(signal) (1ull << ((signal) - 1))
#define IGNORED_BY_DEFAULT (BIT(SIGCHLD) | BIT(SIGCONT) | BIT(SIGURG) | BIT(SIGWINCH)) /* signal(7) */

ssize_t ml_ptrace_read_set(pid_t tid, int note, void *into, size_t bytes)
{
	struct iovec span = { into, bytes };

	return ptrace(PTRACE_GETREGSET, tid, note, &span) ? -1 : (ssize_t)span.iov_len;
}

int ml_ptrace_write_set(pid_t tid, int note, const void *from, size_t bytes)
{
	struct iovec span = { (void *)from, bytes };

	return ptrace(PTRACE_SETREGSET, tid, note, &span) ? -1 : 0;
}

/* Refuses a set that fills the buffer: it may have been cut, and would not be restored whole. */
static int read_vectors(pid_t tid, struct ml_ptrace_state *state)
{
	int note = ml_ptrace_vector_note(tid);
	ssize_t bytes = ml_ptrace_read_set(tid, note, state->vectors, sizeof(state->vectors));

	if (bytes <= 0 || (size_t)bytes == sizeof(state->vectors)) {
		errno = bytes <= 0 ? errno : EFBIG;
		return -1;
	}
	state->vector_note = (ml_u32)note;
	state->vector_bytes = (ml_u32)bytes;
	return 0;
}

int ml_ptrace_state_read(pid_t tid, struct ml_ptrace_state *state)
{
	if (ml_ptrace_read_set(tid, NT_PRSTATUS, &state->registers, sizeof(state->registers)) !=
		    (ssize_t)sizeof(state->registers) ||
	    ptrace(PTRACE_GETSIGMASK, tid, sizeof(state->signal_mask), &state->signal_mask))
		return -1;
	return read_vectors(tid, state);
}

int ml_ptrace_state_write(pid_t tid, const struct ml_ptrace_state *state)
{
	int failed = 0;

	failed |= ml_ptrace_write_set(tid, (int)state->vector_note, state->vectors, state->vector_bytes);
	failed |= ptrace(PTRACE_SETSIGMASK, tid, sizeof(state->signal_mask), &state->signal_mask) ? -1 : 0;
	failed |= ml_ptrace_write_set(tid, NT_PRSTATUS, &state->registers, sizeof(state->registers));
	return failed;
}

/* A traced process keeps them pending, where the kernel would have dropped them. */
static ml_u64 ignored_signals(const char *status)
{
	return ml_proc_field(status, "SigIgn:\t", 16) | (IGNORED_BY_DEFAULT & ~ml_proc_field(status, "SigCgt:\t", 16));
}

bool ml_ptrace_has_pending_signal(pid_t tid)
{
	char status[4096];
	ml_u64 pending;

	if (ml_proc_read(tid, "status", status, sizeof(status)) < 0 || !strstr(status, "\nSigCgt:"))
		return true; /* unknown */
	pending = ml_proc_field(status, "SigPnd:\t", 16) | ml_proc_field(status, "ShdPnd:\t", 16);
	return pending & ~ml_proc_field(status, "SigBlk:\t", 16) & ~ignored_signals(status);
}

bool ml_ptrace_ignores_signal(pid_t tid, int signal)
{
	char status[4096];

	return ml_proc_read(tid, "status", status, sizeof(status)) > 0 && ignored_signals(status) & BIT(signal);
}

/* NT_PRSTATUS by architecture, also of a 32-bit process under a 64-bit kernel (<asm/ptrace.h>). */
static const struct layout {
	ml_u32 bytes, word_bytes, stack_pointer;
} layouts[] = {
	{ 27 * 8, 8, 19 }, /* x86_64 */
	{ 34 * 8, 8, 31 }, /* arm64 */
	{ 18 * 4, 4, 13 }, /* arm32 */
	{ 17 * 4, 4, 15 }, /* i386 */
};

struct ml_exit_stop ml_stopped_thread_read(pid_t pid, pid_t tid)
{
	struct ml_exit_stop stop = { .timestamp_ns = ml_clock_ns(), .pid = (ml_u32)pid, .tid = (ml_u32)tid };
	ml_u8 set[sizeof(stop.registers)];
	ssize_t bytes = ml_ptrace_read_set(tid, NT_PRSTATUS, set, sizeof(set));

	for (size_t i = 0; i < sizeof(layouts) / sizeof(*layouts); i++) {
		const struct layout *layout = &layouts[i];

		if (bytes != (ssize_t)layout->bytes)
			continue;
		stop.n_registers = layout->bytes / layout->word_bytes;
		for (ml_u32 r = 0; r < stop.n_registers; r++)
			memcpy(&stop.registers[r], set + r * layout->word_bytes, layout->word_bytes);
		stop.stack_pointer = stop.registers[layout->stack_pointer];
	}
	return stop;
}

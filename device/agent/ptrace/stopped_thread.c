// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/ptrace/stopped_thread.h"

#include <elf.h>
#include <string.h>

#include "agent/protocol/blocks.h"
#include "agent/ptrace/state.h"

/* What NT_PRSTATUS is of each architecture, that of a 32-bit process as a 64-bit kernel tells it included (<asm/ptrace.h>). */
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

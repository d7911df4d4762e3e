// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/inject/patch_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>

#define PIECE_BYTES 256

int ml_patch_memory_open(struct ml_patch_memory *memory, pid_t pid, pid_t stopped_tid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	*memory = (struct ml_patch_memory){ open(path, O_RDWR | O_CLOEXEC), stopped_tid };
	return memory->fd < 0 ? -1 : 0;
}

void ml_patch_memory_close(struct ml_patch_memory *memory)
{
	if (memory->fd >= 0)
		close(memory->fd);
	memory->fd = -1;
}

bool ml_patch_memory_read(const struct ml_patch_memory *memory, ml_u64 address, ml_u8 *bytes, size_t n)
{
	return pread(memory->fd, bytes, n, (off_t)address) == (ssize_t)n;
}

bool ml_patch_memory_holds(const struct ml_patch_memory *memory, ml_u64 address, const ml_u8 *bytes, size_t n)
{
	ml_u8 there[PIECE_BYTES];

	return n <= sizeof(there) && ml_patch_memory_read(memory, address, there, n) && !memcmp(there, bytes, n);
}

/* Writes whole words, with the bytes around. */
static int poke(const struct ml_patch_memory *memory, ml_u64 address, const ml_u8 *bytes, size_t n)
{
	for (size_t done = 0; done < n;) {
		ml_u64 at = (address + done) & ~(ml_u64)(sizeof(long) - 1);
		size_t skipped = (size_t)(address + done - at);
		size_t taken = sizeof(long) - skipped < n - done ? sizeof(long) - skipped : n - done;
		long word;

		errno = 0;
		word = ptrace(PTRACE_PEEKTEXT, memory->tid, (void *)(size_t)at, NULL);
		if (errno)
			return -1;
		memcpy((char *)&word + skipped, bytes + done, taken);
		if (ptrace(PTRACE_POKETEXT, memory->tid, (void *)(size_t)at, (void *)word))
			return -1;
		done += taken;
	}
	return 0;
}

int ml_patch_memory_write(const struct ml_patch_memory *memory, ml_u64 address, const ml_u8 *bytes, size_t n)
{
	if (ml_patch_memory_holds(memory, address, bytes, n))
		return 0;
	if (pwrite(memory->fd, bytes, n, (off_t)address) != (ssize_t)n && poke(memory, address, bytes, n))
		return -1;
	return ml_patch_memory_holds(memory, address, bytes, n) ? 0 : -1;
}

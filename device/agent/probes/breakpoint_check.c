// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/probes/breakpoint_check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/probes/function_names.h"
#include "agent/process/process_maps.h"

#if defined(__x86_64__) || defined(__i386__)
#define BREAKPOINT_BYTES 1
static const unsigned char breakpoint[] = { 0xcc }; /* int3 */
#elif defined(__aarch64__)
#define BREAKPOINT_BYTES 4
static const unsigned char breakpoint[] = { 0xa0, 0x00, 0x20, 0xd4 }; /* brk #5: arch/arm64/include/asm/brk-imm.h */
#else
#define BREAKPOINT_BYTES 0
static const unsigned char breakpoint[1];
#endif

/* The address at which the process maps this file offset as code; 0: none. */
static ml_u64 find_code(const char *maps, ino_t inode, ml_u64 file_offset)
{
	for (const char *line = maps; line && *line;) {
		unsigned long long start, end, offset, number;
		char permissions[5];

		if (sscanf(line, "%llx-%llx %4s %llx %*s %llu", &start, &end, permissions, &offset, &number) == 5 &&
		    number == inode && permissions[2] == 'x' && file_offset >= offset &&
		    file_offset < offset + (end - start))
			return start + (file_offset - offset);
		line = strchr(line, '\n');
		line = line ? line + 1 : NULL;
	}
	return 0;
}

static int check_probe(const struct ml_probe *probe, const char *maps, int memory)
{
	const char *name = probe->function < ML_FN_PAIR ? ml_function_names[probe->function] : "a function of --pairs";
	unsigned char bytes[4] = { 0 };
	struct stat file;
	ml_u64 address;

	if (stat(probe->path, &file)) {
		ml_blocks_error(ML_REASON_TARGET_ERROR, "could not read %s: %s", probe->path, strerror(errno));
		return -1;
	}
	address = find_code(maps, file.st_ino, probe->entry_offset);
	if (!address) {
		ml_blocks_error(ML_REASON_TARGET_ERROR, "%s is not mapped by the process (name the allocator with -O)",
				probe->path);
		return -1;
	}
	if (pread(memory, bytes, BREAKPOINT_BYTES, (off_t)address) != BREAKPOINT_BYTES)
		return 0; /* unreadable: trust the kernel's success */
	if (!memcmp(bytes, breakpoint, BREAKPOINT_BYTES))
		return 0;
	ml_blocks_error(ML_REASON_TRACER_ERROR,
			"the probe on %s at 0x%llx was accepted but is not in place (the kernel has not written the "
			"breakpoint; try again, or use --tracer preload)",
			name, (unsigned long long)address);
	return -1;
}

int ml_breakpoint_check(const struct ml_config *config, int pid)
{
	char path[64];
	size_t bytes;
	char *maps = ml_process_maps_read((ml_u32)pid, &bytes);
	int memory, result = 0;

	if (!maps) {
		ml_blocks_error(ML_REASON_TARGET_ERROR, "pid %d exited while attaching", pid);
		return -1;
	}
	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	memory = open(path, O_RDONLY | O_CLOEXEC);
	for (int i = 0; i < config->n_probes && !result; i++)
		result = check_probe(&config->probes[i], maps, memory);
	if (memory >= 0)
		close(memory);
	free(maps);
	return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a process all of whose threads are stopped by us, whatever its protection. */
#ifndef MEMLEAK_PATCH_MEMORY_H
#define MEMLEAK_PATCH_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "wire.h"

struct ml_patch_memory {
	int fd;    /* /proc/PID/mem */
	pid_t tid; /* a stopped thread: for where the file is not let write over protection (proc_mem.force_override) */
};

/* 0, or -1 with errno. */
int ml_patch_memory_open(struct ml_patch_memory *memory, pid_t pid, pid_t stopped_tid);
void ml_patch_memory_close(struct ml_patch_memory *memory);

bool ml_patch_memory_read(const struct ml_patch_memory *memory, ml_u64 address, ml_u8 *bytes, size_t n);
bool ml_patch_memory_holds(const struct ml_patch_memory *memory, ml_u64 address, const ml_u8 *bytes, size_t n);

/* Writes what is not there yet and reads it back. 0, or -1: it is not all there. */
int ml_patch_memory_write(const struct ml_patch_memory *memory, ml_u64 address, const ml_u8 *bytes, size_t n);

#endif

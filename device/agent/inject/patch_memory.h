/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a process whose threads are all stopped, of whatever protection. */
#ifndef MEMLEAK_PATCH_MEMORY_H
#define MEMLEAK_PATCH_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "wire.h"

struct ml_patch_memory {
	int fd;    /* /proc/PID/mem */
	pid_t tid; /* a stopped thread, if the kernel refuses writes through the file (proc_mem.force_override) */
};

/* 0, or -1 with errno. */
int ml_patch_memory_open(struct ml_patch_memory *memory, pid_t pid, pid_t stopped_tid);
void ml_patch_memory_close(struct ml_patch_memory *memory);

bool ml_patch_memory_read(const struct ml_patch_memory *memory, ml_u64 address, ml_u8 *bytes, size_t n);
bool ml_patch_memory_holds(const struct ml_patch_memory *memory, ml_u64 address, const ml_u8 *bytes, size_t n);

/* Writes bytes that differ and reads them back. 0, or -1: they are not all written. */
int ml_patch_memory_write(const struct ml_patch_memory *memory, ml_u64 address, const ml_u8 *bytes, size_t n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads another process's memory through a cache of its pages (process_vm_readv(2)). */
#pragma once

#include "bytes.h"

#define ML_REMOTE_PAGE_BYTES 4096u /* of the cache; a multiple of it is a page of the kernel's */
#define ML_REMOTE_SETS 64
#define ML_REMOTE_WAYS 4
#define ML_REMOTE_SPAN_BYTES (68u << 10)

struct ml_remote_page {
	ml_u64 address; /* of its first byte */
	ml_u32 pid;     /* 0 = empty */
	ml_u8 bytes[ML_REMOTE_PAGE_BYTES];
};

struct ml_remote_memory {
	int (*read)(ml_u32 pid, ml_u64 address, void *into, size_t bytes); /* 0, or -1; NULL: process_vm_readv(2) */
	struct ml_remote_page pages[ML_REMOTE_SETS][ML_REMOTE_WAYS];
	ml_u8 next_way[ML_REMOTE_SETS]; /* to be overwritten */
	ml_u8 span[ML_REMOTE_SPAN_BYTES];
};

/* Copies so many bytes; -1 where one of them cannot be read, or the address wraps. */
int ml_remote_memory_read(struct ml_remote_memory *memory, ml_u32 pid, ml_u64 address, void *into, size_t bytes);

/* Drops what is cached of one process. */
void ml_remote_memory_forget(struct ml_remote_memory *memory, ml_u32 pid);

/*
 * Copies [start, end), which *bytes then is. It is valid until the next one is opened. -1: it cannot be read, or has more than
 * ML_REMOTE_SPAN_BYTES.
 */
int ml_remote_memory_open(struct ml_remote_memory *memory, ml_u32 pid, ml_u64 start, ml_u64 end, struct ml_cfi_bytes *bytes);

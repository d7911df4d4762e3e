/* SPDX-License-Identifier: Apache-2.0 */
/* Reads another process's memory through a cache of its pages (process_vm_readv(2)). */
#ifndef MEMLEAK_REMOTE_MEMORY_H
#define MEMLEAK_REMOTE_MEMORY_H

#include <stddef.h>

#include "wire.h"

#define ML_REMOTE_PAGE_BYTES 4096u /* of the cache; a multiple of it is a page of the kernel's */
#define ML_REMOTE_SETS 64
#define ML_REMOTE_WAYS 4

struct ml_remote_page {
	ml_u64 address; /* of its first byte */
	ml_u32 pid;     /* 0 = empty */
	ml_u8 bytes[ML_REMOTE_PAGE_BYTES];
};

struct ml_remote_memory {
	struct ml_remote_page pages[ML_REMOTE_SETS][ML_REMOTE_WAYS];
	ml_u8 next_way[ML_REMOTE_SETS]; /* to be overwritten */
};

/* Copies so many bytes; -1 where one of them cannot be read, or the address wraps. */
int ml_remote_memory_read(struct ml_remote_memory *memory, ml_u32 pid, ml_u64 address, void *into, size_t bytes);

/* Drops what is cached of one process. */
void ml_remote_memory_forget(struct ml_remote_memory *memory, ml_u32 pid);

/*
 * A span of memory that is read from its start on. Bytes that are unreadable or behind the end read as zero and set
 * a flag. Check the flags before using the values.
 */
struct ml_cursor {
	struct ml_remote_memory *memory;
	ml_u64 at;           /* of the next byte */
	ml_u64 end;          /* of the span */
	ml_u64 filled_at;    /* what buffer[] holds: */
	ml_u32 filled_bytes;
	ml_u32 pid;
	ml_u8 is_unreadable;
	ml_u8 is_overrun;
	ml_u8 buffer[192];
};

void ml_cursor_open(struct ml_cursor *cursor, struct ml_remote_memory *memory, ml_u32 pid, ml_u64 start, ml_u64 end);

/* A little-endian number of 1, 2, 4 or 8 bytes. */
ml_u64 ml_cursor_number(struct ml_cursor *cursor, ml_u32 bytes);

/* LEB128 (DWARF 5 §7.6). One that goes past 64 bits is an overrun. */
ml_u64 ml_cursor_uleb(struct ml_cursor *cursor);
__INT64_TYPE__ ml_cursor_sleb(struct ml_cursor *cursor);

void ml_cursor_skip(struct ml_cursor *cursor, ml_u64 bytes);

static inline int ml_cursor_is_good(const struct ml_cursor *cursor)
{
	return !cursor->is_unreadable && !cursor->is_overrun;
}

#endif

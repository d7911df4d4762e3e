// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "remote_memory.h"

#include <string.h>
#include <sys/uio.h>

#define LEB128_BYTES_MAX 10 /* 64 bits, 7 in each */

/* The page that begins at this address, or NULL when it cannot be read. */
static const struct ml_remote_page *page_at(struct ml_remote_memory *memory, ml_u32 pid, ml_u64 address)
{
	ml_u32 set = (ml_u32)(address / ML_REMOTE_PAGE_BYTES + pid) % ML_REMOTE_SETS;
	struct ml_remote_page *page;
	struct iovec local, remote;

	for (int way = 0; way < ML_REMOTE_WAYS; way++) {
		page = &memory->pages[set][way];
		if (page->pid == pid && page->address == address)
			return page;
	}
	page = &memory->pages[set][memory->next_way[set]];
	local = (struct iovec){ page->bytes, ML_REMOTE_PAGE_BYTES };
	remote = (struct iovec){ (void *)(size_t)address, ML_REMOTE_PAGE_BYTES };
	page->pid = 0;
	if (process_vm_readv((int)pid, &local, 1, &remote, 1, 0) != ML_REMOTE_PAGE_BYTES)
		return NULL;
	page->pid = pid;
	page->address = address;
	memory->next_way[set] = (memory->next_way[set] + 1) % ML_REMOTE_WAYS;
	return page;
}

int ml_remote_memory_read(struct ml_remote_memory *memory, ml_u32 pid, ml_u64 address, void *into, size_t bytes)
{
	ml_u8 *to = into;

	if (!pid || address + bytes < address)
		return -1;
	while (bytes) {
		size_t offset = address % ML_REMOTE_PAGE_BYTES;
		size_t step = ML_REMOTE_PAGE_BYTES - offset < bytes ? ML_REMOTE_PAGE_BYTES - offset : bytes;
		const struct ml_remote_page *page = page_at(memory, pid, address - offset);

		if (!page)
			return -1;
		memcpy(to, page->bytes + offset, step);
		to += step;
		address += step;
		bytes -= step;
	}
	return 0;
}

void ml_remote_memory_forget(struct ml_remote_memory *memory, ml_u32 pid)
{
	for (int set = 0; set < ML_REMOTE_SETS; set++)
		for (int way = 0; way < ML_REMOTE_WAYS; way++)
			if (memory->pages[set][way].pid == pid)
				memory->pages[set][way].pid = 0;
}

void ml_cursor_open(struct ml_cursor *cursor, struct ml_remote_memory *memory, ml_u32 pid, ml_u64 start, ml_u64 end)
{
	cursor->memory = memory;
	cursor->pid = pid;
	cursor->at = start;
	cursor->end = end;
	cursor->filled_at = start;
	cursor->filled_bytes = 0;
	cursor->is_unreadable = 0;
	cursor->is_overrun = end < start;
}

/* The buffer from the next byte on, within its page so that a page is not read for what may not be asked for. */
static void fill(struct ml_cursor *cursor)
{
	ml_u64 bytes = ML_REMOTE_PAGE_BYTES - cursor->at % ML_REMOTE_PAGE_BYTES;

	if (bytes > cursor->end - cursor->at)
		bytes = cursor->end - cursor->at;
	if (bytes > sizeof(cursor->buffer))
		bytes = sizeof(cursor->buffer);
	cursor->filled_at = cursor->at;
	cursor->filled_bytes = (ml_u32)bytes;
	if (ml_remote_memory_read(cursor->memory, cursor->pid, cursor->at, cursor->buffer, bytes))
		cursor->is_unreadable = 1;
}

static ml_u8 next_byte(struct ml_cursor *cursor)
{
	if (!ml_cursor_is_good(cursor) || cursor->at >= cursor->end) {
		cursor->is_overrun |= !cursor->is_unreadable;
		return 0;
	}
	if (cursor->at - cursor->filled_at >= cursor->filled_bytes)
		fill(cursor);
	return cursor->is_unreadable ? 0 : cursor->buffer[cursor->at++ - cursor->filled_at];
}

ml_u64 ml_cursor_number(struct ml_cursor *cursor, ml_u32 bytes)
{
	ml_u64 value = 0;

	for (ml_u32 i = 0; i < bytes; i++)
		value |= (ml_u64)next_byte(cursor) << 8 * i;
	return value;
}

static ml_u64 leb128(struct ml_cursor *cursor, ml_u32 *bits, ml_u8 *last)
{
	ml_u64 value = 0;

	*bits = 0;
	for (int i = 0; i < LEB128_BYTES_MAX; i++) {
		*last = next_byte(cursor);
		value |= (ml_u64)(*last & 0x7f) << *bits;
		*bits += 7;
		if (*last < 0x80)
			return value;
	}
	cursor->is_overrun = 1;
	return 0;
}

ml_u64 ml_cursor_uleb(struct ml_cursor *cursor)
{
	ml_u32 bits;
	ml_u8 last;

	return leb128(cursor, &bits, &last);
}

__INT64_TYPE__ ml_cursor_sleb(struct ml_cursor *cursor)
{
	ml_u32 bits;
	ml_u8 last;
	ml_u64 value = leb128(cursor, &bits, &last);

	if (bits < 64 && last & 0x40)
		value |= ~0ull << bits;
	return (__INT64_TYPE__)value;
}

void ml_cursor_skip(struct ml_cursor *cursor, ml_u64 bytes)
{
	if (bytes > cursor->end - cursor->at)
		cursor->is_overrun = 1;
	else
		cursor->at += bytes;
}

// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "remote_memory.h"

#include <string.h>
#include <sys/uio.h>

static int read_page(const struct ml_remote_memory *memory, ml_u32 pid, ml_u64 address, void *into)
{
	struct iovec local = { into, ML_REMOTE_PAGE_BYTES };
	struct iovec remote = { (void *)(size_t)address, ML_REMOTE_PAGE_BYTES };

	if (memory->read)
		return memory->read(pid, address, into, ML_REMOTE_PAGE_BYTES);
	return process_vm_readv((int)pid, &local, 1, &remote, 1, 0) == ML_REMOTE_PAGE_BYTES ? 0 : -1;
}

/* The page that begins at this address, or NULL when it cannot be read. */
static const struct ml_remote_page *page_at(struct ml_remote_memory *memory, ml_u32 pid, ml_u64 address)
{
	ml_u32 set = (ml_u32)(address / ML_REMOTE_PAGE_BYTES + pid) % ML_REMOTE_SETS;
	struct ml_remote_page *page;

	for (int way = 0; way < ML_REMOTE_WAYS; way++) {
		page = &memory->pages[set][way];
		if (page->pid == pid && page->address == address)
			return page;
	}
	page = &memory->pages[set][memory->next_way[set]];
	page->pid = 0;
	if (read_page(memory, pid, address, page->bytes))
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

int ml_remote_memory_open(struct ml_remote_memory *memory, ml_u32 pid, ml_u64 start, ml_u64 end, struct ml_cfi_bytes *bytes)
{
	if (end - start > ML_REMOTE_SPAN_BYTES ||
	    ml_remote_memory_read(memory, pid, start, memory->span, (size_t)(end - start)))
		return -1;
	*bytes = (struct ml_cfi_bytes){ .at = memory->span,
					.end = memory->span + (end - start),
					.distance = start - (ml_u64)(size_t)memory->span };
	return 0;
}

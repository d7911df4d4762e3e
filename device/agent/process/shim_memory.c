// SPDX-License-Identifier: Apache-2.0
/* Sources: System V gABI "ELF Header", "Program Header"; proc(5), /proc/PID/maps. */
#define _GNU_SOURCE
#include "agent/process/shim_memory.h"

#include <elf.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "agent/process/process_maps.h"
#include "agent/process/target_objects.h"

#define SHIM_NAME "libmemleak.so"
#define SEGMENTS_MAX 64
#define PAGE_BYTES 4096u /* the smallest; behind .bss a page has zeros */
#define BYTES_MAX (64u << 20) /* larger than any shim */

struct extent {
	ml_u64 low, high; /* as the file has them */
};

static void take(struct extent *extent, ml_u32 type, ml_u64 vaddr, ml_u64 bytes)
{
	if (type != PT_LOAD || bytes > BYTES_MAX)
		return;
	if (vaddr < extent->low)
		extent->low = vaddr;
	if (vaddr + bytes > extent->high)
		extent->high = vaddr + bytes;
}

static bool read_extent(ml_u32 pid, ml_u64 base, struct extent *extent)
{
	union {
		unsigned char ident[EI_NIDENT];
		Elf32_Ehdr of_32;
		Elf64_Ehdr of_64;
	} header;
	union {
		Elf32_Phdr of_32[SEGMENTS_MAX];
		Elf64_Phdr of_64[SEGMENTS_MAX];
	} segments;
	bool is_64;
	size_t n;

	if (ml_target_read(pid, base, &header, sizeof(header)) || memcmp(header.ident, ELFMAG, SELFMAG))
		return false;
	is_64 = header.ident[EI_CLASS] == ELFCLASS64;
	n = is_64 ? header.of_64.e_phnum : header.of_32.e_phnum;
	if (n > SEGMENTS_MAX || ml_target_read(pid, base + (is_64 ? header.of_64.e_phoff : header.of_32.e_phoff), &segments,
					       n * (is_64 ? sizeof(Elf64_Phdr) : sizeof(Elf32_Phdr))))
		return false;
	for (size_t i = 0; i < n; i++)
		if (is_64)
			take(extent, segments.of_64[i].p_type, segments.of_64[i].p_vaddr, segments.of_64[i].p_memsz);
		else
			take(extent, segments.of_32[i].p_type, segments.of_32[i].p_vaddr, segments.of_32[i].p_memsz);
	return extent->low < extent->high && extent->high - extent->low <= BYTES_MAX;
}

/* A library is linked to address 0, and its headers are its first bytes. */
static void add(struct ml_shim_memory *memory, ml_u32 pid, ml_u64 base)
{
	struct extent extent = { .low = ~0ull };

	if (memory->n == ML_SHIM_MEMORY_MAX || !read_extent(pid, base, &extent))
		return;
	memory->all[memory->n].start = base;
	memory->all[memory->n++].end = (base + extent.high - extent.low + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1ull);
}

void ml_shim_memory_find(struct ml_shim_memory *memory, ml_u32 pid, const char *maps)
{
	unsigned long long offset;
	char permissions[4];
	ml_u64 start, end;

	memory->n = 0;
	for (const char *line = maps, *next; (next = ml_process_maps_line(line, &start, &end, permissions)); line = next)
		if (memmem(line, (size_t)(next - line), SHIM_NAME, sizeof(SHIM_NAME) - 1) &&
		    sscanf(line, "%*x-%*x %*4s %llx", &offset) == 1 && !offset)
			add(memory, pid, start);
}

ml_u64 ml_shim_memory_outside(const struct ml_shim_memory *memory, ml_u64 *start, ml_u64 end)
{
	for (size_t i = 0; i < memory->n && memory->all[i].start < end; i++) {
		if (memory->all[i].end <= *start)
			continue;
		if (memory->all[i].start > *start)
			return memory->all[i].start;
		*start = memory->all[i].end < end ? memory->all[i].end : end;
	}
	return end;
}

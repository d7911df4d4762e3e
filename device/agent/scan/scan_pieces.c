// SPDX-License-Identifier: Apache-2.0
/* Source: proc(5), /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst: bit 63 in memory, bit 62 in swap). */
#define _LARGEFILE64_SOURCE
#include "agent/scan/scan_pieces.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/process/proc_file.h"
#include "agent/process/process_image.h"
#include "agent/process/process_maps.h"
#include "agent/protocol/extend.h"

#define SHIM_NAME "libmemleak.so"
#define PAGE_BYTES 4096u /* the smallest; behind .bss a page has zeros */
#define BYTES_MAX (64u << 20) /* larger than any shim */
#define USED (3ull << 62)
#define ENTRIES 4096u

/* A library is linked to address 0, and its headers are its first bytes. */
static void add_library(struct ml_shim_memory *memory, int file, ml_u64 base)
{
	struct ml_elf_segments elf;
	ml_u64 low = ~0ull, high = 0;

	if (memory->n == ML_SHIM_MEMORY_MAX || ml_elf_segments_read(&elf, file, base))
		return;
	for (int i = 0; i < elf.n_loaded; i++) {
		const struct ml_elf_segment *segment = &elf.loaded[i];

		if (segment->memory_bytes > BYTES_MAX)
			continue;
		low = segment->vaddr < low ? segment->vaddr : low;
		high = segment->vaddr + segment->memory_bytes > high ? segment->vaddr + segment->memory_bytes : high;
	}
	if (low >= high || high - low > BYTES_MAX)
		return;
	memory->all[memory->n].start = base;
	memory->all[memory->n++].end = (base + high - low + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1ull);
}

void ml_shim_memory_find(struct ml_shim_memory *memory, ml_u32 pid, const char *maps)
{
	int file = ml_proc_open((pid_t)pid, "mem", O_RDONLY);
	struct ml_maps_line line;

	memory->n = 0;
	for (const char *at = maps; (at = ml_process_maps_line(at, &line));)
		if (!line.offset && ml_process_maps_has(&line, SHIM_NAME))
			add_library(memory, file, line.start);
	if (file >= 0)
		close(file);
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

/* ---- pieces ------------------------------------------------------------------------------------------- */

void ml_scan_pieces_begin(struct ml_scan_pieces *pieces, int pid)
{
	pieces->pagemap = ml_proc_open(pid, "pagemap", O_RDONLY);
	pieces->n = 0;
	pieces->has_failed = false;
}

static void add_run(struct ml_scan_pieces *pieces, ml_u64 start, ml_u64 end)
{
	while (start < end) {
		ml_u64 bytes = end - start < ML_SCAN_PIECE_BYTES ? end - start : ML_SCAN_PIECE_BYTES;

		if (!ML_EXTEND(pieces->all, pieces->n, pieces->room)) {
			pieces->has_failed = true;
			return;
		}
		pieces->all[pieces->n++] = (struct ml_scan_piece){ start, bytes };
		start += bytes;
	}
}

void ml_scan_pieces_add(struct ml_scan_pieces *pieces, ml_u64 start, ml_u64 end)
{
	static ml_u64 entries[ENTRIES];
	ml_u64 page_bytes = (ml_u64)sysconf(_SC_PAGESIZE), run = 0, at = start;

	while (at < end) {
		ml_u64 page = at / page_bytes;
		ssize_t got =
			pieces->pagemap < 0 ? -1 : pread64(pieces->pagemap, entries, sizeof(entries), (off64_t)(page * 8));

		if (got < 8) {
			add_run(pieces, run ? run : at, end);
			return;
		}
		for (size_t i = 0; i < (size_t)got / 8 && at < end; i++, at = (page + i) * page_bytes) {
			if (entries[i] & USED) {
				run = run ? run : at;
			} else if (run) {
				add_run(pieces, run, at);
				run = 0;
			}
		}
	}
	if (run)
		add_run(pieces, run, end);
}

int ml_scan_pieces_end(struct ml_scan_pieces *pieces)
{
	if (pieces->pagemap >= 0)
		close(pieces->pagemap);
	return pieces->has_failed ? -1 : 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "agent/process/code_map.h"

#include <stdlib.h>
#include <string.h>

#include "agent/protocol/blocks.h"
#include "agent/process/patient_read.h"
#include "agent/process/process_maps.h"

/* A pc outside the known mappings may be in a new one, or not be a pc. The maps are read again, but not for each such pc. */
#define REREAD_NS (50ull * 1000 * 1000)
/* The header is in the mapping itself or some below it (the file's read-only part; text split by mprotect()). */
#define HEADER_MAPPINGS_MAX 16

static void drop(struct ml_code_map *map, struct ml_code_process *process)
{
	if (!process->pid)
		return;
	ml_remote_memory_forget(&map->memory, process->pid);
	free(process->mappings);
	memset(process, 0, sizeof(*process));
}

struct ml_code_process *ml_code_map_process(struct ml_code_map *map, ml_u32 pid, ml_u64 image)
{
	struct ml_code_process *chosen = &map->processes[0];

	map->memory.read = ml_patient_read;
	for (int i = 0; i < ML_CODE_MAP_PROCESSES; i++) {
		struct ml_code_process *process = &map->processes[i];

		if (process->pid == pid) {
			chosen = process;
			break;
		}
		if (process->used < chosen->used)
			chosen = process;
	}
	if (chosen->pid != pid || chosen->image != image) {
		drop(map, chosen);
		chosen->pid = pid;
		chosen->image = image;
	}
	chosen->used = ++map->now;
	return chosen;
}

static ml_u32 count_lines(const char *text)
{
	ml_u32 lines = 0;

	for (; *text && lines < ML_CODE_MAP_MAPPINGS_MAX; text++)
		lines += *text == '\n';
	return lines;
}

static void read_mappings(struct ml_code_process *process)
{
	struct ml_maps_line line;
	char *text = ml_process_maps_read(process->pid, NULL);
	ml_u32 lines = text ? count_lines(text) : 0;

	free(process->mappings);
	process->mappings = calloc(lines ? lines : 1, sizeof(*process->mappings));
	process->n_mappings = 0;
	memset(process->modules, 0, sizeof(process->modules));
	for (const char *at = text; process->mappings && process->n_mappings < lines && (at = ml_process_maps_line(at, &line));)
		process->mappings[process->n_mappings++] =
			(struct ml_code_mapping){ line.start, line.end, line.permissions[0] == 'r',
						  line.permissions[2] == 'x' };
	free(text);
}

/* Index of the code mapping that holds the pc; -1: none. */
static long search(const struct ml_code_process *process, ml_u64 pc)
{
	ml_u32 low = 0, high = process->n_mappings; /* the first one that ends behind the pc */

	while (low < high) {
		ml_u32 middle = low + (high - low) / 2;

		if (process->mappings[middle].end <= pc)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == process->n_mappings || process->mappings[low].start > pc || !process->mappings[low].is_code)
		return -1;
	return low;
}

static long find_mapping(struct ml_code_map *map, struct ml_code_process *process, ml_u64 pc)
{
	long found = search(process, pc);
	ml_u64 now_ns;

	if (found >= 0)
		return found;
	now_ns = ml_clock_ns();
	if (process->read_ns && now_ns - process->read_ns < REREAD_NS)
		return -1;
	if (process->read_ns)
		ml_remote_memory_forget(&map->memory, process->pid);
	process->read_ns = now_ns;
	read_mappings(process);
	return search(process, pc);
}

/* Opens the ELF file with code at the pc. Its header is at the start of a mapping. */
static void open_module(struct ml_code_map *map, const struct ml_code_process *process, const struct ml_cfi_arch *arch,
			long position, ml_u64 pc, struct ml_code_module *module)
{
	module->start = process->mappings[position].start;
	module->found = ML_CFI_ABSENT;
	for (long i = position; i >= 0 && i > position - HEADER_MAPPINGS_MAX; i--) {
		if (!process->mappings[i].is_readable)
			continue;
		module->found =
			ml_eh_frame_open(&map->memory, process->pid, arch, process->mappings[i].start, pc, &module->eh_frame);
		if (module->found == ML_CFI_FOUND)
			return;
	}
}

enum ml_cfi_found ml_code_map_find(struct ml_code_map *map, struct ml_code_process *process, const struct ml_cfi_arch *arch,
				   ml_u64 pc, struct ml_fde *fde, int *is_file)
{
	long position = find_mapping(map, process, pc);
	struct ml_code_module *module;
	ml_u64 start;

	*is_file = 0;
	if (position < 0)
		return ML_CFI_UNREADABLE;
	start = process->mappings[position].start;
	module = &process->modules[start / ML_REMOTE_PAGE_BYTES % ML_CODE_MAP_MODULES];
	if (module->start != start || !start)
		open_module(map, process, arch, position, pc, module);
	if (module->found != ML_CFI_FOUND)
		return module->found;
	*is_file = 1;
	return ml_eh_frame_find(&map->memory, process->pid, &module->eh_frame, pc, fde);
}

void ml_code_map_forget(struct ml_code_map *map, ml_u32 pid)
{
	for (int i = 0; i < ML_CODE_MAP_PROCESSES; i++)
		if (!pid || map->processes[i].pid == pid)
			drop(map, &map->processes[i]);
}

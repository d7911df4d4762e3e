// SPDX-License-Identifier: Apache-2.0
#include "agent/probes/probed_code.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cfi/cfi.h"
#include "agent/protocol/blocks.h"
#include "agent/probes/function_names.h"
#include "agent/probes/patched_code.h"
#include "agent/probes/probed_file.h"
#include "agent/process/proc_file.h"
#include "agent/process/process_maps.h"

extern const ml_u32 ml_bpf_memleak_bytes;

bool ml_probed_code_has_programs(void)
{
	return ml_bpf_memleak_bytes != 0;
}

/* Class and machine have the same offset in both ELF classes (gABI chapter 4). -1: not a readable ELF file. */
static int read_header(int fd, Elf32_Ehdr *header)
{
	ssize_t n = pread(fd, header, sizeof(*header), 0);

	return n == (ssize_t)sizeof(*header) && !memcmp(header->e_ident, ELFMAG, SELFMAG) ? 0 : -1;
}

/* subject: its name in the error. A file that is not ELF is reported when it is probed. */
static int check(int fd, const char *subject)
{
	const struct ml_cfi_arch *native = ml_cfi_native();
	Elf32_Ehdr header;

	if (read_header(fd, &header) || (native && header.e_machine == native->elf_machine))
		return 0;
	if (header.e_machine == EM_ARM)
		return ml_blocks_error(ML_REASON_TARGET_ERROR,
				       "%s is 32-bit arm code, where the kernel places no uprobes (use --tracer preload)",
				       subject);
	if (header.e_ident[EI_CLASS] == ELFCLASS32)
		return ml_blocks_error(ML_REASON_TARGET_ERROR,
				       "%s is 32-bit, which cannot be traced (use a 64-bit build of it)", subject);
	return ml_blocks_error(ML_REASON_TARGET_ERROR, "%s is code of another machine (ELF machine %u), which cannot be traced",
			       subject, header.e_machine);
}

static int check_process(int pid)
{
	char subject[64];
	int fd = ml_proc_open(pid, "exe", O_RDONLY), result;

	snprintf(subject, sizeof(subject), "process %d", pid);
	result = check(fd, subject);
	if (fd >= 0)
		close(fd);
	return result;
}

/* The offsets of a probe, in this order. */
enum site { OF_ENTRY, OF_RETURN, OF_START, SITES };

static int refuse(const struct ml_probed_file *file, const struct ml_probed_address *patched)
{
	return ml_blocks_error(
		ML_REASON_TARGET_ERROR,
		"the code at %#llx of process %d differs from %s: another tool has hooked it, and a uprobe would crash the process "
		"(remove that hook, or use --tracer plt)",
		(unsigned long long)patched->address, patched->pid, file->path);
}

/* Moves a probe whose cheaper location is hooked to the function's start. */
static int settle(struct ml_probe *probe, const struct ml_probed_file *file, const struct ml_probed_address *sites)
{
	const struct ml_probed_address *patched = &sites[OF_START];

	if (!sites[OF_ENTRY].address && !sites[OF_RETURN].address)
		return 0;
	if (!patched->address) {
		probe->entry_offset = probe->return_offset = probe->function_offset;
		return 0;
	}
	return refuse(file, patched);
}

#define SITES_MAX (SITES * ML_MAX_PROBES + ML_MAX_EXITS)

/* Fills in the sites of probes `first` to `end`, those of their exits behind all others. Returns their number. */
static size_t list_sites(const struct ml_config *config, int first, int end, struct ml_probed_address *sites)
{
	const struct ml_probe *probes = &config->probes[first];
	size_t n = (size_t)(end - first), n_sites = SITES * n;

	for (size_t i = 0; i < n; i++) {
		const ml_u64 at[SITES] = { probes[i].entry_offset,
					   probes[i].has_return ? probes[i].return_offset : probes[i].function_offset,
					   probes[i].function_offset };

		for (int j = 0; j < SITES; j++)
			sites[SITES * i + (size_t)j] =
				(struct ml_probed_address){ .function = probes[i].function_offset, .offset = at[j] };
	}
	for (int i = 0; i < config->n_exits; i++)
		if (config->exits[i].probe >= first && config->exits[i].probe < end)
			sites[n_sites++] =
				(struct ml_probed_address){ .function = config->probes[config->exits[i].probe].function_offset,
							    .offset = config->exits[i].offset };
	return n_sites;
}

/* Index behind the probes in the file of probe `first`. */
static int end_of_file(const struct ml_config *config, int first)
{
	int last = first + 1;

	while (last < config->n_probes && config->probes[last].file == config->probes[first].file)
		last++;
	return last;
}

/* Checks the probes `first` to `end`, which are in one file. */
static int settle_file(struct ml_config *config, int first, int end)
{
	const struct ml_probed_file *file = &config->files[config->probes[first].file];
	struct ml_probed_address sites[SITES_MAX];
	size_t n = (size_t)(end - first), n_sites = list_sites(config, first, end, sites);

	if (!ml_patched_code_find(config->pid, file, sites, n_sites))
		return 0;
	for (size_t i = SITES * n; i < n_sites; i++)
		if (sites[i].address)
			return refuse(file, &sites[i]);
	for (size_t i = 0; i < n; i++)
		if (settle(&config->probes[first + (int)i], file, &sites[SITES * i]))
			return -1;
	return 0;
}

static int settle_all(struct ml_config *config)
{
	int result = 0;

	for (int first = 0, end; first < config->n_probes && config->pid && !result; first = end) {
		end = end_of_file(config, first);
		result = settle_file(config, first, end);
	}
	return result;
}

int ml_probed_code_spare(const struct ml_config *config, struct ml_spared *spared)
{
	for (int first = 0, end; first < config->n_probes; first = end) {
		struct ml_probed_address sites[SITES_MAX];
		size_t n_sites;

		end = end_of_file(config, first);
		n_sites = list_sites(config, first, end, sites);
		for (size_t i = 0; i < (size_t)(end - first); i++)
			sites[SITES * i + OF_START].offset = sites[SITES * i].offset; /* no probe, but for the two */
		if (ml_spared_find(spared, &config->files[config->probes[first].file], sites, n_sites, config->pid))
			return ml_blocks_error(ML_REASON_TRACER_ERROR, "out of memory");
	}
	return 0;
}

int ml_probed_code_settle(struct ml_config *config)
{
	if (!ml_probed_code_has_programs())
		return ml_blocks_error(
			ML_REASON_TRACER_ERROR,
			"this 32-bit agent carries no BPF programs (bring the agent of the kernel's own ABI, or use --tracer preload)");
	if (config->pid && check_process(config->pid))
		return -1;
	for (int i = 0; i < config->n_probes; i++) {
		struct ml_probed_file *file = &config->files[config->probes[i].file];

		if (ml_probed_file_require(file) || check(file->fd, file->path))
			return -1;
	}
	return settle_all(config);
}

/* ---- breakpoints ------------------------------------------------------------------------------------ */

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

/* The next address at which the process maps this file offset as code; 0: none. */
static ml_u64 next_code(const char **maps, ml_u64 inode, ml_u64 file_offset)
{
	struct ml_maps_line line;

	while ((*maps = ml_process_maps_code(*maps, &line)))
		if (line.inode == inode && file_offset - line.offset < line.end - line.start)
			return line.start + (file_offset - line.offset);
	return 0;
}

static int check_probe(const struct ml_probed_file *file, const struct ml_probe *probe, const char *maps, int memory)
{
	const char *name = probe->function < ML_FN_PAIR ? ml_function_names[probe->function] : "a function of --pairs";
	unsigned char bytes[4] = { 0 };
	ml_u64 address = next_code(&maps, file->version.inode, probe->entry_offset);

	if (!address)
		return ml_blocks_error(ML_REASON_TARGET_ERROR, "%s is not mapped by the process (name the allocator with -O)",
				       file->path);
	if (pread(memory, bytes, BREAKPOINT_BYTES, (off_t)address) != BREAKPOINT_BYTES)
		return 0; /* unreadable: trust the kernel's success */
	if (!memcmp(bytes, breakpoint, BREAKPOINT_BYTES))
		return 0;
	return ml_blocks_error(ML_REASON_TRACER_ERROR,
			       "the probe on %s at 0x%llx was accepted but is not in place (the kernel has not written the "
			       "breakpoint; try again, or use --tracer preload)",
			       name, (unsigned long long)address);
}

static bool is_other_thread(void *pid, int tid)
{
	return tid != *(int *)pid;
}

/* Whether one of the code's mappings has the breakpoint, or none can be read. A mapping that comes late has none. */
static bool remains(const struct ml_probe *probe, ml_u64 inode, const char *maps, int memory)
{
	bool result = true;

	for (ml_u64 address; (address = next_code(&maps, inode, probe->entry_offset));) {
		unsigned char bytes[4];

		if (pread(memory, bytes, BREAKPOINT_BYTES, (off_t)address) != BREAKPOINT_BYTES)
			continue;
		result = !memcmp(bytes, breakpoint, BREAKPOINT_BYTES);
		if (result)
			break;
	}
	return result;
}

bool ml_breakpoints_remain(const struct ml_config *config, int pid)
{
	int tid = ml_proc_find(pid, "task", is_other_thread, &pid), memory;
	char *maps = ml_process_maps_read((ml_u32)pid, NULL), name[40];
	bool result = true;

	snprintf(name, sizeof(name), "task/%d/mem", tid);
	memory = ml_proc_open(pid, name, O_RDONLY);
	for (int i = 0; maps && i < config->n_probes && result; i++) {
		const struct ml_probe *probe = &config->probes[i];

		result = remains(probe, config->files[probe->file].version.inode, maps, memory);
	}
	if (memory >= 0)
		close(memory);
	free(maps);
	return result;
}

int ml_breakpoint_check(const struct ml_config *config, int pid)
{
	char *maps = ml_process_maps_read((ml_u32)pid, NULL);
	int memory, result = 0;

	if (!maps)
		return ml_blocks_error(ML_REASON_TARGET_ERROR, "pid %d exited while attaching", pid);
	memory = ml_proc_open(pid, "mem", O_RDONLY);
	for (int i = 0; i < config->n_probes && !result; i++)
		result = check_probe(&config->files[config->probes[i].file], &config->probes[i], maps, memory);
	if (memory >= 0)
		close(memory);
	free(maps);
	return result;
}

// SPDX-License-Identifier: Apache-2.0
#include "agent/probes/probed_code.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cfi/cfi.h"
#include "agent/protocol/blocks.h"
#include "agent/probes/patched_code.h"

extern const ml_u32 ml_bpf_memleak_bytes;

bool ml_probed_code_has_programs(void)
{
	return ml_bpf_memleak_bytes != 0;
}

/* Class and machine have the same offset in both ELF classes (gABI chapter 4). -1: not a readable ELF file. */
static int read_header(const char *path, Elf32_Ehdr *header)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : pread(fd, header, sizeof(*header), 0);

	if (fd >= 0)
		close(fd);
	return n == (ssize_t)sizeof(*header) && !memcmp(header->e_ident, ELFMAG, SELFMAG) ? 0 : -1;
}

/* subject: its name in the error. An unreadable file is reported when it is probed. */
static int check(const char *path, const char *subject)
{
	const struct ml_cfi_arch *native = ml_cfi_native();
	Elf32_Ehdr header;

	if (read_header(path, &header) || (native && header.e_machine == native->elf_machine))
		return 0;
	if (header.e_machine == EM_ARM)
		ml_blocks_error(ML_REASON_TARGET_ERROR,
				"%s is 32-bit arm code, where the kernel places no uprobes (use --tracer preload)", subject);
	else if (header.e_ident[EI_CLASS] == ELFCLASS32)
		ml_blocks_error(ML_REASON_TARGET_ERROR, "%s is 32-bit, which cannot be traced (use a 64-bit build of it)",
				subject);
	else
		ml_blocks_error(ML_REASON_TARGET_ERROR, "%s is code of another machine (ELF machine %u), which cannot be traced",
				subject, header.e_machine);
	return -1;
}

static int check_process(int pid)
{
	char path[64], subject[64];

	snprintf(path, sizeof(path), "/proc/%d/exe", pid);
	snprintf(subject, sizeof(subject), "process %d", pid);
	return check(path, subject);
}

/* The offsets of a probe, in this order. */
enum site { OF_ENTRY, OF_RETURN, OF_START, SITES };

/* Moves a probe whose cheaper location is hooked to the function's start. */
static int settle(struct ml_probe *probe, const struct ml_probed_address *sites)
{
	const struct ml_probed_address *patched = &sites[OF_START];

	if (!sites[OF_ENTRY].address && !sites[OF_RETURN].address)
		return 0;
	if (!patched->address) {
		probe->entry_offset = probe->return_offset = probe->function_offset;
		return 0;
	}
	ml_blocks_error(ML_REASON_TARGET_ERROR,
			"the code at %#llx of process %d differs from %s: another tool has hooked it, and a uprobe would crash the process "
			"(remove that hook, or use --tracer plt)",
			(unsigned long long)patched->address, patched->pid, probe->path);
	return -1;
}

/* Checks n probes in one file. With children, or with --all, the kernel writes its breakpoints into all processes. */
static int settle_file(const struct ml_config *config, struct ml_probe *probes, size_t n)
{
	struct ml_probed_address sites[SITES * ML_MAX_PROBES] = { 0 };
	const char *path = probes[0].path;
	bool is_all = config->whole_machine || config->follow;
	int result = 0;

	for (size_t i = 0; i < n; i++) {
		const ml_u64 at[SITES] = {
			probes[i].entry_offset, probes[i].has_return ? probes[i].return_offset : probes[i].function_offset,
			probes[i].function_offset,
		};

		for (int j = 0; j < SITES; j++)
			sites[SITES * i + j] = (struct ml_probed_address){ .function = probes[i].function_offset, .offset = at[j] };
	}
	if (is_all ? ml_patched_code_find_all(path, sites, SITES * n) :
		     config->pid && ml_patched_code_find(config->pid, path, sites, SITES * n))
		for (size_t i = 0; i < n && !result; i++)
			result = settle(&probes[i], &sites[SITES * i]);
	return result;
}

static int settle_all(struct ml_config *config)
{
	int result = 0;

	for (int first = 0, last; first < config->n_probes && !result; first = last) {
		for (last = first + 1; last < config->n_probes && !strcmp(config->probes[last].path, config->probes[first].path);)
			last++;
		result = settle_file(config, &config->probes[first], (size_t)(last - first));
	}
	return result;
}

int ml_probed_code_settle(struct ml_config *config)
{
	if (config->pid && check_process(config->pid))
		return -1;
	for (int i = 0; i < config->n_probes; i++)
		if (check(config->probes[i].path, config->probes[i].path))
			return -1;
	if (ml_probed_code_has_programs())
		return settle_all(config);
	ml_blocks_error(ML_REASON_TRACER_ERROR,
			"this 32-bit agent carries no BPF programs (bring the agent of the kernel's own ABI, or use --tracer preload)");
	return -1;
}

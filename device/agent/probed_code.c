// SPDX-License-Identifier: Apache-2.0
#include "probed_code.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../cfi/cfi.h"
#include "blocks.h"

extern const ml_u32 ml_bpf_memleak_bytes;

bool ml_probed_code_has_programs(void)
{
	return ml_bpf_memleak_bytes != 0;
}

/* Class and machine stand at one place in headers of both classes (gABI chapter 4). -1: not an ELF file that can be read. */
static int read_header(const char *path, Elf32_Ehdr *header)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : pread(fd, header, sizeof(*header), 0);

	if (fd >= 0)
		close(fd);
	return n == (ssize_t)sizeof(*header) && !memcmp(header->e_ident, ELFMAG, SELFMAG) ? 0 : -1;
}

/* subject: what to call it in the error. What cannot be read is left to those who will say why. */
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

int ml_probed_code_check(const struct ml_config *config)
{
	if (config->pid && check_process(config->pid))
		return -1;
	for (int i = 0; i < config->n_probes; i++)
		if (check(config->probes[i].path, config->probes[i].path))
			return -1;
	if (ml_probed_code_has_programs())
		return 0;
	ml_blocks_error(ML_REASON_TRACER_ERROR,
			"this 32-bit agent carries no BPF programs (bring the agent of the kernel's own ABI, or use --tracer preload)");
	return -1;
}

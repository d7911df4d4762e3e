// SPDX-License-Identifier: Apache-2.0
/* The vDSO is an ELF file in memory, which the kernel trusts: vdso(7), gABI chapter 5. */
#include "preload/freestanding/clock.h"

#include <elf.h>
#include <link.h>
#include <linux/prctl.h>

#include "preload/freestanding/bytes.h"

#if defined(__aarch64__)
#define NAME "__kernel_clock_gettime"
#else
#define NAME "__vdso_clock_gettime"
#endif

extern unsigned long getauxval(unsigned long type) __attribute__((weak));

ml_clock_function *ml_clock_vdso;
int ml_clock_has_no_counter;

/* Its hash tables differ by kernel; its strings follow its symbols. */
static ElfW(Addr) find(const ElfW(Dyn) * entry, unsigned long bias)
{
	const ElfW(Sym) *symbol = NULL;
	const char *strings = NULL;

	for (; entry && entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag == DT_SYMTAB)
			symbol = (const void *)(bias + entry->d_un.d_ptr);
		else if (entry->d_tag == DT_STRTAB)
			strings = (const void *)(bias + entry->d_un.d_ptr);
	for (; symbol && (const char *)(symbol + 1) <= strings; symbol++)
		if (symbol->st_shndx != SHN_UNDEF && ml_is_same_text(strings + symbol->st_name, NAME))
			return bias + symbol->st_value;
	return 0;
}

void ml_clock_find_vdso(void)
{
	unsigned long base = getauxval ? getauxval(AT_SYSINFO_EHDR) : 0, bias = base;
	const ElfW(Ehdr) *file = (const void *)base;
	const ElfW(Phdr) *header = file ? (const void *)(base + file->e_phoff) : NULL;
	const ElfW(Dyn) *dynamic = NULL;
	int mode = 0;

	if (!ML_SYSCALL2(prctl, PR_GET_TSC, &mode) && mode == PR_TSC_SIGSEGV)
		ml_clock_has_no_counter = 1;
	for (int i = 0; file && i < file->e_phnum; i++, header++)
		if (header->p_type == PT_LOAD)
			bias = base + header->p_offset - header->p_vaddr;
		else if (header->p_type == PT_DYNAMIC)
			dynamic = (const void *)(base + header->p_offset);
	ml_clock_vdso = (ml_clock_function *)find(dynamic, bias);
}

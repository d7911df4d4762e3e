// SPDX-License-Identifier: Apache-2.0
#include "preload/hooks/pages.h"

#include <sys/mman.h>

#include "preload/freestanding/syscalls.h"

#define LEAST_PAGE 4096ul
#define LARGEST_PAGE 65536ul

void ml_hook_pages_close(struct ml_hook_pages *pages)
{
	if (pages->bytes && ML_SYSCALL3(mprotect, pages->open, pages->bytes, pages->protection))
		pages->n_unrestored++;
	pages->bytes = 0;
}

/* The page size follows from what the kernel refuses; all pages of a mapping have one protection. */
static int open_page(struct ml_hook_pages *pages, unsigned long slot, unsigned int protection)
{
	long error = -EINVAL;

	if (pages->bytes && slot - pages->open < pages->bytes)
		return 0;
	ml_hook_pages_close(pages);
	for (unsigned long bytes = LEAST_PAGE; bytes <= LARGEST_PAGE && error == -EINVAL; bytes *= 2) {
		unsigned long page = slot & ~(bytes - 1);

		error = ML_SYSCALL3(mprotect, page, bytes, protection | PROT_WRITE);
		if (error)
			continue;
		pages->open = page;
		pages->bytes = bytes;
		pages->protection = protection;
	}
	return (int)error;
}

int ml_hook_pages_store(struct ml_hook_pages *pages, unsigned long slot, unsigned long expected, unsigned long value)
{
	const struct ml_own_mapping *range = ml_mappings_find(pages->maps, slot);
	int error;

	if (!range || slot % sizeof(slot) || !(range->protection & PROT_READ))
		return -EFAULT;
	if (range->is_shared || (range->protection & (PROT_EXEC | PROT_WRITE)) == PROT_EXEC)
		return -EACCES;
	if (!(range->protection & PROT_WRITE)) {
		error = open_page(pages, slot, range->protection);
		if (error)
			return error;
	}
	return !__atomic_compare_exchange_n((unsigned long *)slot, &expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

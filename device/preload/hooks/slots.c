// SPDX-License-Identifier: Apache-2.0
#include "preload/hooks/slots.h"

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

/*
 * By the kernel, into a page that is writable while its module is relocated: the loader may make it read-only at any moment, where a
 * store of our own would fault. -EFAULT: it has done so.
 */
static int store_beside_loader(unsigned long slot, unsigned long expected, unsigned long value)
{
	long n;

	if (__atomic_load_n((unsigned long *)slot, __ATOMIC_RELAXED) != expected)
		return 1;
	n = ml_read_memory((void *)slot, (ml_u64)(unsigned long)&value, sizeof(value));
	return n < 0 ? (int)n : 0;
}

int ml_hook_pages_store(struct ml_hook_pages *pages, unsigned long slot, unsigned long expected, unsigned long value)
{
	const struct ml_own_mapping *range = ml_mappings_find(pages->maps, slot);
	int is_read_only, error;

	if (!range || slot % sizeof(slot) || !(range->protection & PROT_READ))
		return -EFAULT;
	if (range->is_shared || (range->protection & (PROT_EXEC | PROT_WRITE)) == PROT_EXEC)
		return -EACCES;
	is_read_only = !(range->protection & PROT_WRITE);
	if (!is_read_only && ml_hook_is_in_relro(pages->module, slot)) {
		error = store_beside_loader(slot, expected, value);
		if (error >= 0)
			return error;
		is_read_only = error == -EFAULT; /* else a sandbox forbids the call */
	}
	if (is_read_only) {
		error = open_page(pages, slot, range->protection & ~(unsigned int)PROT_WRITE);
		if (error)
			return error;
	}
	return !__atomic_compare_exchange_n((unsigned long *)slot, &expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

/* ---- slots that were not bound yet --------------------------------------------------------------------- */

static unsigned long value_of(const struct ml_relocation *relocation)
{
	return __atomic_load_n((unsigned long *)relocation->address, __ATOMIC_RELAXED);
}

struct search {
	const struct ml_elf *elf;
	enum ml_binding binding;
};

static void find_own_binding(void *context, const struct ml_relocation *relocation)
{
	struct search *search = context;
	const char *name = ml_elf_symbol_name(search->elf, relocation->symbol);
	unsigned int number = name ? ml_hook_number(name) : ML_HOOKS;
	unsigned long own;

	if (number == ML_HOOKS || !ml_hook_is_of_heap(&ml_hooks[number]) || relocation->address % sizeof(own) ||
	    !ml_mappings_can_read(search->elf->maps, relocation->address, sizeof(own)))
		return;
	own = ml_elf_find(search->elf, name);
	if (own && own != ml_hooks[number].real && value_of(relocation) == own)
		search->binding = ML_BINDING_TO_ITSELF;
}

/*
 * libstdc++ defines operator new, and calls that of an allocator which comes before it. A module that calls its own does so for all of a
 * family, or blocks would be given back to another allocator than theirs.
 */
static enum ml_binding find_binding(const struct ml_elf *elf)
{
	struct search search = { elf, elf->is_symbolic ? ML_BINDING_TO_ITSELF : ML_BINDING_TO_OTHERS };

	ml_relocations_each(elf, find_own_binding, &search);
	return search.binding;
}

int ml_hook_is_stub(const struct ml_module *module, const struct ml_elf *elf, enum ml_binding *binding,
		    const struct ml_relocation *relocation, const struct ml_hook *hook)
{
	unsigned long value = value_of(relocation), own;
	const struct ml_own_mapping *range;

	if (!relocation->is_call || value < module->low || value >= module->high)
		return 0;
	range = ml_mappings_find(elf->maps, value);
	if (!range || !(range->protection & PROT_EXEC))
		return 0;
	own = ml_elf_find(elf, hook->name);
	if (!own || own == hook->real)
		return 1;
	if (*binding == ML_BINDING_UNKNOWN)
		*binding = find_binding(elf);
	return own != value && *binding == ML_BINDING_TO_OTHERS;
}

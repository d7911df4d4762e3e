// SPDX-License-Identifier: Apache-2.0
#include "preload/hooks/stubs.h"

#include <sys/mman.h>

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

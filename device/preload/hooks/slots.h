/* SPDX-License-Identifier: Apache-2.0 */
/* Stores into slots on pages that may be read-only, and restores the protection of each page. */
#pragma once

#include "preload/freestanding/mappings.h"
#include "preload/hooks/names.h"
#include "preload/hooks/relocations.h"

struct ml_hook_pages {
	const struct ml_mappings *maps;
	const struct ml_module *module; /* whose slots are stored to */
	unsigned long open; /* the page that was made writable */
	unsigned long bytes; /* 0 = none */
	unsigned int protection; /* the page's own */
	int n_unrestored; /* pages that could not be made read-only again */
};

/* Whether the loader makes the slot's page read-only once it has relocated the module, which it does beside us. */
static inline int ml_hook_is_in_relro(const struct ml_module *module, unsigned long slot)
{
	return slot >= module->relro_low && (slot | 0xfff) < module->relro_high;
}

/*
 * Atomically stores `value` if the slot holds `expected`. Returns 1 if it holds another value, -errno if the page must
 * not be written to: shared memory or code.
 */
int ml_hook_pages_store(struct ml_hook_pages *pages, unsigned long slot, unsigned long expected, unsigned long value);

/* After the last store. */
void ml_hook_pages_close(struct ml_hook_pages *pages);

/* ---- slots that were not bound yet: they hold an address of the module's own code, which asks the loader at the first call ---- */

/* The definitions that a module calls where it defines the name itself, too. */
enum ml_binding { ML_BINDING_UNKNOWN, ML_BINDING_TO_OTHERS, ML_BINDING_TO_ITSELF };

static inline int ml_hook_is_of_heap(const struct ml_hook *hook)
{
	return hook->family == ML_HOOK_ALLOCATOR || hook->family == ML_HOOK_OPERATORS;
}

/* Whether the slot holds a stub that would bind to the hook's real function. binding: of the module, found where it is unknown. */
int ml_hook_is_stub(const struct ml_module *module, const struct ml_elf *elf, enum ml_binding *binding,
		    const struct ml_relocation *relocation, const struct ml_hook *hook);

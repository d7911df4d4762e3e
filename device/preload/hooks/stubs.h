/* SPDX-License-Identifier: Apache-2.0 */
/* Slots that were not bound yet: they hold an address of the module's own code, which asks the loader at the first call. */
#pragma once

#include "preload/hooks/names.h"
#include "preload/hooks/relocations.h"

/* The definitions that a module calls where it defines the name itself, too. */
enum ml_binding { ML_BINDING_UNKNOWN, ML_BINDING_TO_OTHERS, ML_BINDING_TO_ITSELF };

static inline int ml_hook_is_of_heap(const struct ml_hook *hook)
{
	return hook->family == ML_HOOK_ALLOCATOR || hook->family == ML_HOOK_OPERATORS;
}

/* Whether the slot holds a stub that would bind to the hook's real function. binding: of the module, found where it is unknown. */
int ml_hook_is_stub(const struct ml_module *module, const struct ml_elf *elf, enum ml_binding *binding,
		    const struct ml_relocation *relocation, const struct ml_hook *hook);

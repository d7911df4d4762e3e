/* SPDX-License-Identifier: Apache-2.0 */
/* The relocations of a module that name a symbol: slots that the loader filled with a function's address. */
#pragma once

#include "preload/hooks/elf.h"

struct ml_relocation {
	unsigned long address; /* of the slot */
	unsigned long symbol;
	int is_call; /* R_*_JUMP_SLOT: may be bound at the first call. R_*_GLOB_DAT, R_*_ABS: bound at load time. */
	long addend;
};

/*
 * Calls `visit` for those of DT_JMPREL, DT_REL, DT_RELA and DT_ANDROID_REL(A). DT_RELR has no symbols. Returns -1 if a table is malformed, after visiting what precedes.
 */
int ml_relocations_each(const struct ml_elf *elf, void (*visit)(void *context, const struct ml_relocation *relocation),
			void *context);

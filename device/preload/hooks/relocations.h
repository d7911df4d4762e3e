/* SPDX-License-Identifier: Apache-2.0 */
/* The relocations of a module that name a symbol: places that the loader filled with an address of a function. */
#pragma once

#include "preload/hooks/elf.h"

enum ml_relocation_kind {
	ML_RELOCATION_OTHER,
	ML_RELOCATION_CALL,    /* R_*_JUMP_SLOT: may be bound at the first call */
	ML_RELOCATION_ADDRESS, /* R_*_GLOB_DAT, R_*_ABS: holds the address from the start */
};

struct ml_relocation {
	unsigned long address; /* of the slot, in the process */
	unsigned long symbol;
	enum ml_relocation_kind kind;
	long addend;
};

/*
 * Calls `visit` for those of DT_JMPREL, DT_REL, DT_RELA and DT_ANDROID_REL(A) that are no ML_RELOCATION_OTHER. (DT_RELR
 * knows no symbols.) -1 when a table is malformed: what came before has been visited.
 */
int ml_relocations_each(const struct ml_elf *elf, void (*visit)(void *context, const struct ml_relocation *relocation),
			void *context);

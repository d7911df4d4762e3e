/* SPDX-License-Identifier: Apache-2.0 */
/* The relocations of a module that name a symbol: slots that the loader filled with a function's address. */
#pragma once

#include "preload/hooks/elf.h"

enum ml_relocation_kind {
	ML_RELOCATION_OTHER,
	ML_RELOCATION_CALL,    /* R_*_JUMP_SLOT: may be bound at the first call */
	ML_RELOCATION_ADDRESS, /* R_*_GLOB_DAT, R_*_ABS: bound at load time */
};

struct ml_relocation {
	unsigned long address; /* of the slot */
	unsigned long symbol;
	enum ml_relocation_kind kind;
	long addend;
};

/*
 * Calls `visit` for the relocations of DT_JMPREL, DT_REL, DT_RELA and DT_ANDROID_REL(A), except ML_RELOCATION_OTHER.
 * DT_RELR has no symbols. Returns -1 if a table is malformed, after visiting what precedes.
 */
int ml_relocations_each(const struct ml_elf *elf, void (*visit)(void *context, const struct ml_relocation *relocation),
			void *context);

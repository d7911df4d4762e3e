/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loaded module by its dynamic section (gABI, chapter 5): what it defines for others, and where its relocations are.
 * The module may be hostile or half loaded: nothing is read that is not mapped readable, everything is bounded.
 */
#pragma once

#include <elf.h>
#include <link.h>

#include "preload/hooks/maps.h"

struct ml_elf_table {
	unsigned long address; /* 0 = there is none */
	unsigned long bytes;
	int has_addends; /* Elf_Rela, not Elf_Rel */
};

struct ml_elf {
	const struct ml_hook_maps *maps;
	unsigned long base;    /* what is added to the file's addresses */
	unsigned long dynamic; /* the section */
	unsigned long symbols;
	const char *strings;
	unsigned long string_bytes;
	unsigned long versions; /* DT_VERSYM; 0 = none */
	unsigned long definitions; /* of versions: DT_VERDEF; 0 = none */
	unsigned long gnu_hash, hash;
	struct ml_elf_table plt, rel, rela; /* DT_JMPREL, DT_REL, DT_RELA */
	struct ml_elf_table packed;         /* DT_ANDROID_REL(A): "APS2" */
	int has_runpath;                    /* DT_RPATH or DT_RUNPATH */
	int is_program;                     /* DT_DEBUG, which libraries do not have */
};

/* 0, or -1 when the section or a table that it names is not as it must be. */
int ml_elf_open(struct ml_elf *elf, const struct ml_hook_maps *maps, unsigned long base, unsigned long dynamic);

/* The address of the function of this name that it defines for others, in its default version; 0 when there is none. */
unsigned long ml_elf_find(const struct ml_elf *elf, const char *name);

struct ml_elf_definition {
	unsigned long address;
	ElfW(Word) version; /* what its version is called, as the SysV hash (gABI, symbol versioning); 0 = it has none */
	int is_default;     /* also for who asks for no version */
	int is_chosen;      /* by a resolver (STT_GNU_IFUNC), whose address it is */
};

/* All of its definitions of a function for others, `max` at most; returns how many. */
unsigned int ml_elf_definitions(const struct ml_elf *elf, const char *name, struct ml_elf_definition *found, unsigned int max);

/* The name of a symbol, which ends with a zero; NULL where there is no such. */
const char *ml_elf_symbol_name(const struct ml_elf *elf, unsigned long index);

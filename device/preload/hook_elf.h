/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loaded module by its dynamic section (gABI, chapter 5): what it defines for others, and where its relocations are.
 * The module may be hostile or half loaded: nothing is read that is not mapped readable, everything is bounded.
 */
#ifndef MEMLEAK_HOOK_ELF_H
#define MEMLEAK_HOOK_ELF_H

#include <elf.h>
#include <link.h>

#include "hook_maps.h"

struct ml_elf_table {
	unsigned long address; /* 0 = there is none */
	size_t bytes;
	int has_addends; /* Elf_Rela, not Elf_Rel */
};

struct ml_elf {
	const struct ml_hook_maps *maps;
	unsigned long base;    /* what is added to the file's addresses */
	unsigned long dynamic; /* the section */
	unsigned long symbols;
	const char *strings;
	size_t string_bytes;
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

/*
 * The same of a version that is not the default one, for who asks for exactly that. *version: what it is called, as the
 * SysV hash (gABI, symbol versioning).
 */
unsigned long ml_elf_find_hidden(const struct ml_elf *elf, const char *name, ElfW(Word) *version);

/* 1 when it defines this name, in its default version, by a resolver that chooses the function (STT_GNU_IFUNC). */
int ml_elf_chooses(const struct ml_elf *elf, const char *name);

/* That of the default version; 0 where nothing has versions. */
ElfW(Word) ml_elf_default_version(const struct ml_elf *elf, const char *name);

/* The name of a symbol, which ends with a zero; NULL where there is no such. */
const char *ml_elf_symbol_name(const struct ml_elf *elf, unsigned long index);

/* 1 when the texts are equal. */
int ml_elf_is_name(const char *name, const char *other);

#endif

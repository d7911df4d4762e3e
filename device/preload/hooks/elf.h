/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loaded module, read by its dynamic section (gABI, chapter 5). It may be hostile or half loaded: only readable
 * mappings are read, and every loop is bounded.
 */
#pragma once

#include <elf.h>
#include <link.h>

#include "preload/freestanding/mappings.h"

struct ml_elf_table {
	unsigned long address; /* 0 = none */
	unsigned long bytes;
	int has_addends; /* Elf_Rela, not Elf_Rel */
};

struct ml_elf {
	const struct ml_mappings *maps;
	unsigned long base;    /* load bias */
	unsigned long dynamic; /* address of the section */
	unsigned long symbols;
	const char *strings;
	unsigned long string_bytes;
	unsigned long versions; /* DT_VERSYM; 0 = none */
	unsigned long definitions; /* DT_VERDEF; 0 = none */
	unsigned long gnu_hash, hash;
	struct ml_elf_table plt, rel, rela; /* DT_JMPREL, DT_REL, DT_RELA */
	struct ml_elf_table packed;         /* DT_ANDROID_REL(A): "APS2" */
	int has_runpath;                    /* DT_RPATH or DT_RUNPATH */
	int is_program;                     /* has DT_DEBUG, unlike libraries */
	int is_symbolic;                    /* its own definitions come first: DT_SYMBOLIC, DF_SYMBOLIC */
};

/* -1 if the section or a table that it names is malformed. */
int ml_elf_open(struct ml_elf *elf, const struct ml_mappings *maps, unsigned long base, unsigned long dynamic);

/* The address of an exported function in its default version; 0 if the module has none. */
unsigned long ml_elf_find(const struct ml_elf *elf, const char *name);

struct ml_elf_definition {
	unsigned long address;
	ElfW(Word) version; /* SysV hash of the version's name (gABI, symbol versioning); 0 = no version */
	int is_default;     /* references without a version bind to it */
	int is_chosen;      /* STT_GNU_IFUNC: the address is the resolver's */
};

/* Finds up to `max` exported definitions of a function; returns their number. */
unsigned int ml_elf_definitions(const struct ml_elf *elf, const char *name, struct ml_elf_definition *found, unsigned int max);

/* A symbol's name, zero-terminated; NULL if there is none. */
const char *ml_elf_symbol_name(const struct ml_elf *elf, unsigned long index);

/*
 * The address that a program at a fixed address gives to another module's function whose address it takes: an entry of its own PLT, which jumps
 * through the function's slot (psABI x86-64, "Function Addresses"). 0 = none.
 */
unsigned long ml_elf_plt_entry(const struct ml_elf *elf, unsigned long index);

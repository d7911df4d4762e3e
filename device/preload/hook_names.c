// SPDX-License-Identifier: Apache-2.0
#include "hook_names.h"

#include "attach.h"
#include "hook_linker.h"
#include "hook_loader.h"
#include "originals.h"
#include "pairs.h"

/* Ours: the library is linked with -Bsymbolic. What is assembly has no type here. */
#define ALLOCATOR_NAMES(X)                                                                                        \
	X(malloc) X(calloc) X(realloc) X(reallocarray) X(free) X(cfree) X(posix_memalign) X(memalign)             \
	X(aligned_alloc) X(valloc) X(pvalloc) X(free_sized) X(free_aligned_sized) X(malloc_usable_size)
#define PROGRAM_NAMES(X) X(execve) X(execvpe) X(fexecve)
#define PROGRAM_FORMS(X) X(execv) X(execvp) X(execl) X(execlp) X(execle)
#define LOADER_NAMES(X) X(dlopen) X(android_dlopen_ext) X(dlsym) X(dlclose)
#if __SIZEOF_LONG__ == 8
#define REGION_NAMES(X) X(mmap) X(mmap64) X(munmap) X(mremap)
#else
#define REGION_NAMES(X) /* see interpose_regions.c */
#endif

#define DECLARE(function) extern char function[];
ALLOCATOR_NAMES(DECLARE)
PROGRAM_NAMES(DECLARE)
PROGRAM_FORMS(DECLARE)
REGION_NAMES(DECLARE)

#define ADDRESS(function) (unsigned long)(function)
#define AT(place) (unsigned long *)(void *)&(place)
#define ALLOCATOR(function) { #function, ADDRESS(function), AT(ml_original.function), ML_HOOK_ALLOCATOR, 0 },
#define PROGRAM(function) { #function, ADDRESS(function), AT(ml_original.function), ML_HOOK_PROGRAM, 0 },
#define FORM(function) { #function, ADDRESS(function), NULL, ML_HOOK_PROGRAM, 0 },
#define REGIONS(function) { #function, ADDRESS(function), AT(ml_original.function), ML_HOOK_REGIONS, 0 },
#define LOADER(function) { #function, ADDRESS(ml_hook_##function), AT(ml_loader_original.function), ML_HOOK_LOADER, 0 },
#define LINKER(function) \
	{ "__loader_" #function, ADDRESS(ml_hook_loader_##function), AT(ml_loader_original.loader_##function), ML_HOOK_LOADER, 0 },

struct ml_hook ml_hooks[ML_HOOKS] = {
	ALLOCATOR_NAMES(ALLOCATOR) PROGRAM_NAMES(PROGRAM) PROGRAM_FORMS(FORM) LOADER_NAMES(LOADER)
	LINKER(dlopen) LINKER(android_dlopen_ext) LINKER(dlclose) REGION_NAMES(REGIONS)
};

enum ml_libc ml_hook_libc;

unsigned int ml_hook_number(const char *name)
{
	for (unsigned int i = 0; i < ML_HOOKS; i++)
		if (ml_hooks[i].name && ml_hooks[i].name[0] == name[0] && ml_elf_is_name(ml_hooks[i].name, name))
			return i;
	return ML_HOOKS;
}

/*
 * Allocators whose names have a version that is not their default one, as those of glibc's libc_malloc_debug.so: the
 * loader binds to them who asks for this very version, and that is who was linked with a libc that calls its own so.
 */
static struct hidden {
	unsigned long real; /* 0 = none was found */
	ElfW(Word) version;
} hidden[ML_HOOKS_OWN];

/* What the resolver of the first module that has the name chose is not known, and no later module's is what is called. */
static unsigned char is_chosen[ML_HOOKS_OWN];

static void look_for(unsigned int number, const struct ml_elf *elf)
{
	struct ml_hook *hook = &ml_hooks[number];
	struct hidden *versioned = number < ML_HOOKS_OWN && hook->family == ML_HOOK_ALLOCATOR ? &hidden[number] : NULL;

	if (number < ML_HOOKS_OWN)
		is_chosen[number] |= (unsigned char)ml_elf_chooses(elf, hook->name);
	if (number < ML_HOOKS_OWN && is_chosen[number])
		return;
	hook->real = ml_elf_find(elf, hook->name);
	if (!versioned)
		return;
	if (hook->real && versioned->real && versioned->version == ml_elf_default_version(elf, hook->name))
		hook->real = versioned->real;
	else if (!hook->real && !versioned->real)
		versioned->real = ml_elf_find_hidden(elf, hook->name, &versioned->version);
}

void ml_hook_look_into(const struct ml_elf *elf)
{
	if (ml_elf_find(elf, "gnu_get_libc_version"))
		ml_hook_libc = ML_LIBC_GLIBC;
	else if (ml_elf_find(elf, "__system_property_get"))
		ml_hook_libc = ML_LIBC_BIONIC;
	for (unsigned int i = 0; i < ML_HOOKS; i++)
		if (ml_hooks[i].name && !ml_hooks[i].real)
			look_for(i, elf);
}

/* bionic's linker before Android 8: no module defines them. It is not asked for the __loader_ names, which are younger. */
static void look_into_linker(void)
{
	for (unsigned int i = 0; i < ML_HOOKS; i++)
		if (ml_hooks[i].name && ml_hooks[i].family == ML_HOOK_LOADER && !ml_hooks[i].real &&
		    ml_hooks[i].name[0] != '_')
			ml_hooks[i].real = ml_linker_find(ml_hooks[i].name);
}

static struct ml_pair_name pair_names[ML_PAIR_NAMES];

void ml_hook_name_pairs(const struct ml_view *view)
{
	const struct ml_pair_table *pairs = view ? view->pairs : NULL;
	ml_u32 n_names = !pairs ? 0 : pairs->n_names < ML_PAIR_NAMES ? pairs->n_names : ML_PAIR_NAMES;

	if (view)
		ml_pairs_begin(view);
	else
		ml_pairs_end();
	for (ml_u32 i = 0; i < ML_PAIR_NAMES; i++)
		ml_hooks[ML_HOOKS_OWN + i].name = NULL;
	for (ml_u32 i = 0; i < n_names; i++) {
		pair_names[i] = pairs->names[i];
		pair_names[i].name[ML_PAIR_NAME_BYTES - 1] = 0;
		ml_hooks[ML_HOOKS_OWN + i] = (struct ml_hook){ pair_names[i].name, 0, NULL, ML_HOOK_PAIRS, 0 };
	}
}

void ml_hook_adopt_pairs(void)
{
	if (ml_hook_libc == ML_LIBC_UNKNOWN)
		ml_hook_libc = ML_LIBC_OTHER;
	if (ml_hook_libc == ML_LIBC_BIONIC)
		look_into_linker();
	for (unsigned int i = 0; i < ML_HOOKS_OWN; i++)
		if (ml_hooks[i].real && ml_hooks[i].original && ml_hooks[i].family == ML_HOOK_LOADER)
			*ml_hooks[i].original = ml_hooks[i].real;
	for (unsigned int i = ML_HOOKS_OWN; i < ML_HOOKS; i++)
		if (ml_hooks[i].name && ml_hooks[i].real && pair_names[i - ML_HOOKS_OWN].tells_size)
			ml_pairs_size_by(pair_names[i - ML_HOOKS_OWN].function, ml_hooks[i].real);
	for (unsigned int i = ML_HOOKS_OWN; i < ML_HOOKS; i++) {
		if (ml_hooks[i].name && ml_hooks[i].real && !pair_names[i - ML_HOOKS_OWN].tells_size)
			ml_hooks[i].entry = ml_pairs_bind(pair_names[i - ML_HOOKS_OWN].function, ml_hooks[i].real);
		if (!ml_hooks[i].entry)
			ml_hooks[i].real = 0; /* nothing is put in its place */
	}
}

int ml_hook_adopt(void)
{
	unsigned int n_needed = 0;

	for (unsigned int i = 0; i < ML_HOOKS; i++)
		n_needed += ml_hooks[i].real && (ml_hooks[i].original == AT(ml_original.malloc) ||
						 ml_hooks[i].original == AT(ml_original.free));
	if (n_needed != 2)
		return is_chosen[ml_hook_number("malloc")] || is_chosen[ml_hook_number("free")] ? ML_ATTACH_CHOSEN :
												  ML_ATTACH_NO_ALLOCATOR;
	if (ml_hook_libc == ML_LIBC_UNKNOWN)
		ml_hook_libc = ML_LIBC_OTHER;
	if (ml_hook_libc == ML_LIBC_BIONIC)
		look_into_linker();
	for (unsigned int i = 0; i < ML_HOOKS; i++)
		if (ml_hooks[i].real && ml_hooks[i].original)
			*ml_hooks[i].original = ml_hooks[i].real;
	ml_originals_adopt();
	return ML_ATTACH_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The hooked functions by name, with our entries and the real addresses. */
#pragma once

#include "preload/hooks/elf.h"
#include "preload/hooks/modules.h"
#include "preload/segment/segment.h"

enum ml_hook_family {
	ML_HOOK_ALLOCATOR,
	ML_HOOK_EXEC, /* exec, to notice that the process becomes another program */
	ML_HOOK_LOADER,  /* to notice modules that come and go */
	ML_HOOK_REGIONS, /* the mmap family, for the region ledger */
	ML_HOOK_SELF,    /* calls by which a process restricts itself: entries/sandbox.c, limits.c */
	ML_HOOK_OPERATORS, /* operator new and delete, where the allocator's own object defines them */
	ML_HOOK_PAIRS,   /* functions of --pairs: pairs.h */
};

/* Families as bits. Inline hooks take the functions of malloc's family; what else there is comes by slots there, too. */
#define ML_HOOK_BIT(family) (1u << (family))
#define ML_HOOKS_OF_INLINE (ML_HOOK_BIT(ML_HOOK_SELF) | ML_HOOK_BIT(ML_HOOK_OPERATORS))
/* Where malloc's family is interposed. */
#define ML_HOOKS_OF_PRELOAD (ML_HOOK_BIT(ML_HOOK_LOADER) | ML_HOOK_BIT(ML_HOOK_OPERATORS) | ML_HOOK_BIT(ML_HOOK_PAIRS))
#define ML_HOOKS_OF_PLT \
	(ML_HOOKS_OF_PRELOAD | ML_HOOK_BIT(ML_HOOK_ALLOCATOR) | ML_HOOK_BIT(ML_HOOK_EXEC) | ML_HOOK_BIT(ML_HOOK_SELF))

struct ml_hook {
	const char *name;
	unsigned long entry;    /* ours */
	unsigned long *original; /* the pointer by which our entry forwards; NULL: it calls another entry */
	enum ml_hook_family family;
	unsigned long real; /* the address to which the loader binds the name; 0 = none */
};

enum ml_libc {
	ML_LIBC_UNKNOWN, /* no module was scanned */
	ML_LIBC_GLIBC,
	ML_LIBC_BIONIC,
	ML_LIBC_OTHER,
};

/* The process's libc, once modules were scanned. */
extern enum ml_libc ml_hook_libc __attribute__((visibility("hidden")));

#define ML_HOOKS_OWN 74u
#define ML_HOOKS (ML_HOOKS_OWN + ML_PAIR_NAMES)

/* Those of --pairs come last. */
extern struct ml_hook ml_hooks[ML_HOOKS] __attribute__((visibility("hidden")));

/* Index of the hook of this name, of --pairs rather than our own; ML_HOOKS if there is none. */
unsigned int ml_hook_number(const char *name);

/* Replaces the names and rules of --pairs by the session's, before modules are scanned for them. NULL: none. */
void ml_hook_name_pairs(const struct ml_view *view);

/*
 * To be called after the last module: gives entries to the pairs that were found, and originals to the loader's hooks.
 */
void ml_hook_adopt_pairs(void);

/*
 * To be called for each module but our own, in lookup order. Binds each name to the first definition; the originals are
 * set by ml_hook_adopt() after the last module.
 */
void ml_hook_scan_module(const struct ml_elf *elf, const struct ml_module *module);

/*
 * Returns enum ml_attach_result: are malloc and free known? If so, our entries forward to the real functions from now
 * on.
 */
int ml_hook_adopt(void);

/* 1 once that has succeeded; modules need not be scanned again. */
extern int ml_hook_knows_allocator __attribute__((visibility("hidden")));

/* ---- the dynamic linker's functions as hooked modules find them (loader.c) --------------------------- */

/*
 * dlopen() may depend on its caller: glibc uses the caller's RUNPATH, bionic since API 24 its namespace. Such calls are
 * jumped to, so that the loader sees the real caller; new modules are searched for at the next call of the loader,
 * which mostly asks for a function's address. Since API 26 bionic's wrapper passes the caller explicitly to a function
 * that is hooked instead.
 */
#define ML_LOADER_FUNCTIONS(X)                                                                                \
	X("dlopen", dlopen, void *, (const char *path, int flags))                                            \
	X("android_dlopen_ext", android_dlopen_ext, void *, (const char *path, int flags, const void *extra)) \
	X("dlmopen", dlmopen, void *, (long space, const char *path, int flags))                              \
	X("dlsym", dlsym, void *, (void *handle, const char *name))                                           \
	X("dlclose", dlclose, int, (void *handle))                                                            \
	X("__loader_dlopen", loader_dlopen, void *, (const char *path, int flags, const void *caller))        \
	X("__loader_android_dlopen_ext", loader_android_dlopen_ext, void *,                                   \
	  (const char *path, int flags, const void *extra, const void *caller))                               \
	X("__loader_dlclose", loader_dlclose, int, (void *handle))

#define ML_LOADER_HOOK(name, function, result, parameters) result ml_hook_##function parameters;
ML_LOADER_FUNCTIONS(ML_LOADER_HOOK)

struct ml_loader_originals {
#define ML_LOADER_ORIGINAL(name, function, result, parameters) result(*function) parameters;
	ML_LOADER_FUNCTIONS(ML_LOADER_ORIGINAL)
};

extern struct ml_loader_originals ml_loader_original __attribute__((visibility("hidden")));

/* Called before each of them, where the linker's lock may be waited for. To be set before the first slot is patched. */
extern void (*ml_hook_before_loader)(void) __attribute__((visibility("hidden")));

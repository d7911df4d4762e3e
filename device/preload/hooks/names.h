/* SPDX-License-Identifier: Apache-2.0 */
/* Which functions are hooked: by name, what is called in their place, and where the real ones are. */
#pragma once

#include "preload/hooks/elf.h"
#include "preload/segment/segment.h"

enum ml_hook_family {
	ML_HOOK_ALLOCATOR,
	ML_HOOK_EXEC, /* exec: that the process becomes another program is told */
	ML_HOOK_LOADER,  /* modules come and go */
	ML_HOOK_REGIONS, /* the mmap family, where the session keeps its ledger */
	ML_HOOK_PAIRS,   /* of --pairs: pairs.h */
};

struct ml_hook {
	const char *name;
	unsigned long entry;    /* ours */
	unsigned long *original; /* where our entry finds what to forward to; NULL: its forms share another's */
	enum ml_hook_family family;
	unsigned long real; /* as the loader binds it; 0 = nobody defines it, and nobody can call it */
};

enum ml_libc {
	ML_LIBC_UNKNOWN, /* nobody has looked */
	ML_LIBC_GLIBC,
	ML_LIBC_BIONIC,
	ML_LIBC_OTHER,
};

/* Whose libc the process has, once its modules were looked into. */
extern enum ml_libc ml_hook_libc __attribute__((visibility("hidden")));

#define ML_HOOKS_OWN 36u
#define ML_HOOKS (ML_HOOKS_OWN + ML_PAIR_NAMES)

/* Those of --pairs are the last. */
extern struct ml_hook ml_hooks[ML_HOOKS] __attribute__((visibility("hidden")));

/* The number of the hook of this name; ML_HOOKS: there is none. */
unsigned int ml_hook_number(const char *name);

/* The rules and names of the session's --pairs, which ml_hook_scan_module() then looks for, take the place of those before; NULL: none. */
void ml_hook_name_pairs(const struct ml_view *view);

/* After the last module: those that were found get their entries, and those of the loader what to forward to. */
void ml_hook_adopt_pairs(void);

/*
 * From the modules in the loader's order, one by one: a name is bound to the first that defines it. Not asked of our own
 * library. Where our entries find the functions is set by ml_hook_adopt(), after the last.
 */
void ml_hook_scan_module(const struct ml_elf *elf);

/* enum ml_attach_result: whether malloc and free are known. From then on, our entries forward to the real functions. */
int ml_hook_adopt(void);

/* 1 once that has succeeded: nobody need look into the modules again. */
int ml_hook_knows_allocator(void);

/* ---- the dynamic linker's functions as hooked modules find them (loader.c) --------------------------- */

/*
 * What a call of dlopen() does may depend on who calls: glibc looks into the caller's RUNPATH, bionic from API 24 on into
 * its namespace. Where it does, the call goes on as a jump, so that the caller is seen as it is, and new modules are
 * looked for when the loader is called the next time: to learn the address of a function, mostly. bionic's own library
 * names the caller from API 26 on, in a call that is hooked instead.
 */
void *ml_hook_dlopen(const char *path, int flags);
void *ml_hook_android_dlopen_ext(const char *path, int flags, const void *extra);
void *ml_hook_loader_dlopen(const char *path, int flags, const void *caller);
void *ml_hook_loader_android_dlopen_ext(const char *path, int flags, const void *extra, const void *caller);
void *ml_hook_dlsym(void *handle, const char *name);
int ml_hook_dlclose(void *handle);
int ml_hook_loader_dlclose(void *handle);

struct ml_loader_originals {
	void *(*dlopen)(const char *, int);
	void *(*android_dlopen_ext)(const char *, int, const void *);
	void *(*loader_dlopen)(const char *, int, const void *);
	void *(*loader_android_dlopen_ext)(const char *, int, const void *, const void *);
	void *(*dlsym)(void *, const char *);
	int (*dlclose)(void *);
	int (*loader_dlclose)(void *);
};

extern struct ml_loader_originals ml_loader_original __attribute__((visibility("hidden")));

/* Called before each of them: a moment at which the linker's lock may be waited for. Set before the first slot is. */
extern void (*ml_hook_before_loader)(void) __attribute__((visibility("hidden")));

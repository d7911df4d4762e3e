/* SPDX-License-Identifier: Apache-2.0 */
/* The dynamic linker's functions as hooked modules find them: after each, the slots of what came or went are looked at. */
#ifndef MEMLEAK_HOOK_LOADER_H
#define MEMLEAK_HOOK_LOADER_H

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

#endif

// SPDX-License-Identifier: Apache-2.0
/*
 * Libraries come and go. A linker that allocates by malloc() says so by that (recorder.c); those of bionic and musl do not.
 * Whose library calls decides what is loaded: such a call reaches the linker with its caller's address, or as if we were
 * not there.
 */
#include <stddef.h>

#include "originals.h"
#include "recorder.h"
#include "tail.h"

#define EXPORT __attribute__((visibility("default")))
#define RTLD_ERROR (-1)

/* What bionic's own dlopen() calls, since API 26 (linker/dlfcn.cpp). */
extern void *__loader_dlopen(const char *name, int flags, const void *caller) __attribute__((weak));
extern void *__loader_android_dlopen_ext(const char *name, int flags, const void *how, const void *caller)
	__attribute__((weak));

/* The code that is known is to be looked at anew. */
static void note_change(void)
{
	if (ml_recorder_is_on())
		__atomic_store_n(&ml_recorder_view()->segment->maps_dirty, ML_MAPS_DIRTY, __ATOMIC_SEQ_CST);
}

EXPORT void *dlopen(const char *name, int flags);
EXPORT void *dlopen(const char *name, int flags)
{
	void *library;

	if (!ml_originals_ready() || !ml_original.dlopen)
		return NULL;
	if (!__loader_dlopen)
		TAIL return ml_original.dlopen(name, flags);
	library = __loader_dlopen(name, flags, __builtin_return_address(0));
	note_change();
	return library;
}

EXPORT void *android_dlopen_ext(const char *name, int flags, const void *how);
EXPORT void *android_dlopen_ext(const char *name, int flags, const void *how)
{
	void *library;

	if (!ml_originals_ready() || !ml_original.android_dlopen_ext)
		return NULL;
	if (!__loader_android_dlopen_ext)
		TAIL return ml_original.android_dlopen_ext(name, flags, how);
	library = __loader_android_dlopen_ext(name, flags, how, __builtin_return_address(0));
	note_change();
	return library;
}

EXPORT int dlclose(void *library);
EXPORT int dlclose(void *library)
{
	int result = RTLD_ERROR;

	if (ml_originals_ready() && ml_original.dlclose)
		result = ml_original.dlclose(library);
	note_change();
	return result;
}

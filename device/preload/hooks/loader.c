// SPDX-License-Identifier: Apache-2.0
#include "preload/entries/originals.h"
#include "preload/freestanding/bytes.h"
#include "preload/freestanding/clock.h"
#include "preload/freestanding/tail_call.h"
#include "preload/hooks/names.h"
#include "preload/hooks/plt_hook.h"
#include "preload/recorder/recorder_session.h"

#define DEEPBIND 8 /* RTLD_DEEPBIND of glibc; others have no such flag */
#define NOLOAD 4   /* RTLD_NOLOAD there */

struct ml_loader_originals ml_loader_original;
void (*ml_hook_before_loader)(void);

static ml_u64 jumped_ns; /* time of the first jump since the last pass that may have loaded modules; 0 = none */

static void note_jump(void)
{
	ml_u64 none = 0;

	__atomic_compare_exchange_n(&jumped_ns, &none, ml_clock_exact_ns(), 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/*
 * The loader's own calls of malloc() go through no slot, so the recorder has not noticed that the maps changed. They are marked before
 * the new modules' slots are patched. A child of fork() must not write to its parent's segment.
 */
static void follow(ml_u64 since_ns)
{
	if (ml_recorder_state_now() == ML_RECORDER_ON)
		__atomic_store_n(&ml_view_in_force()->segment->maps_dirty, ML_MAPS_DIRTY, __ATOMIC_RELAXED);
	ml_plt_hook_follow(since_ns);
}

/* Before a call of the loader, where its lock may be waited for. */
static void catch_up(void)
{
	ml_u64 since_ns =
		__atomic_load_n(&jumped_ns, __ATOMIC_RELAXED) ? __atomic_exchange_n(&jumped_ns, 0, __ATOMIC_RELAXED) : 0;

	if (since_ns)
		follow(since_ns);
	ml_hook_before_loader();
}

/* Only glibc's and bionic's loaders look at the caller. */
static int depends_on_caller(const char *path, const void *caller)
{
	int has_slash = 0;

	if (ml_hook_libc == ML_LIBC_OTHER || !path)
		return 0;
	if (ml_hook_libc == ML_LIBC_BIONIC)
		return 1;
	for (const char *c = path; *c; c++) {
		if (*c == '$') /* $ORIGIN */
			return 1;
		has_slash |= *c == '/';
	}
	return !has_slash && !ml_plt_hook_is_plain_caller((unsigned long)caller);
}

/* A short program has ended before its mappings could be compared. */
static void note_unseen(enum ml_unseen_load kind, const char *library)
{
	struct ml_unseen_loads *loads;
	size_t bytes = library ? ml_length(library) : 0;

	if (!ml_recorder_is_own_process())
		return;
	loads = &ml_view_in_force()->segment->loads;
	if (__atomic_fetch_or(&loads->noted, kind, __ATOMIC_RELAXED) & kind)
		return;
	if (kind == ML_LOADED_DEEP)
		ml_copy(loads->deep, library, bytes < sizeof(loads->deep) ? bytes : sizeof(loads->deep) - 1);
	__atomic_fetch_or(&loads->kinds, kind, __ATOMIC_RELEASE);
}

/* Whether the program has found our function by its name, without a patched slot. Then there may be no original. */
static int is_by_name(void *original, const char *name)
{
	void **known = original;

	if (!ml_hook_before_loader && !*known && ml_originals_ready())
		*known = ml_next_definition(name);
	return !ml_hook_before_loader;
}

void *ml_hook_dlmopen(long space, const char *path, int flags)
{
	if (space) /* LM_ID_BASE is 0 */
		note_unseen(ML_LOADED_NAMESPACE, path);
	if (!is_by_name(&ml_loader_original.dlmopen, "dlmopen")) {
		catch_up();
		note_jump();
	}
	if (!ml_loader_original.dlmopen)
		return NULL;
	TAIL return ml_loader_original.dlmopen(space, path, flags);
}

void *ml_hook_dlopen(const char *path, int flags)
{
	ml_u64 since_ns;
	void *handle;

	if (path && (flags & (DEEPBIND | NOLOAD)) == DEEPBIND &&
	    !ml_hook_knows_allocator) /* else the slots of its calls are patched */
		note_unseen(ML_LOADED_DEEP, path);
	if (is_by_name(&ml_loader_original.dlopen, "dlopen")) {
		if (!ml_loader_original.dlopen)
			return NULL;
		TAIL return ml_loader_original.dlopen(path, flags);
	}
	catch_up();
	if (depends_on_caller(path, __builtin_return_address(0))) {
		note_jump();
		TAIL return ml_loader_original.dlopen(path, flags);
	}
	since_ns = ml_clock_exact_ns();
	handle = ml_loader_original.dlopen(path, flags);
	follow(since_ns);
	return handle;
}

/*
 * By these names a preloaded shim is called without a patched slot. A slot that the loader has bound to such an entry is like a patched
 * one.
 */
#define EXPORT(function) __attribute__((alias("ml_hook_" #function), visibility("default")))
EXPORT(dlopen) extern void *dlopen(const char *path, int flags);
EXPORT(dlmopen) extern void *dlmopen(long space, const char *path, int flags);

void *ml_hook_android_dlopen_ext(const char *path, int flags, const void *extra)
{
	catch_up();
	note_jump();
	TAIL return ml_loader_original.android_dlopen_ext(path, flags, extra);
}

void *ml_hook_dlsym(void *handle, const char *name)
{
	catch_up();
	TAIL return ml_loader_original.dlsym(handle, name);
}

/* Functions that do not depend on their caller: modules that come or go are found when they return. */
#define FOLLOWED(function, result_type, parameters, ...)           \
	result_type ml_hook_##function parameters                  \
	{                                                          \
		ml_u64 since_ns = ml_clock_exact_ns();             \
		result_type result;                                \
                                                                   \
		catch_up();                                        \
		result = ml_loader_original.function(__VA_ARGS__); \
		follow(since_ns);                                  \
		return result;                                     \
	}

FOLLOWED(loader_dlopen, void *, (const char *path, int flags, const void *caller), path, flags, caller)
FOLLOWED(loader_android_dlopen_ext, void *, (const char *path, int flags, const void *extra, const void *caller), path, flags,
	 extra, caller)
FOLLOWED(dlclose, int, (void *handle), handle)
FOLLOWED(loader_dlclose, int, (void *handle), handle)

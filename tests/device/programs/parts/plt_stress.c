// SPDX-License-Identifier: Apache-2.0
/*
 * The PLT hook's own code while libraries come and go on several threads, for a sanitizer to watch.
 *   plt_stress LIBRARY [CYCLES]   LIBRARY0 … LIBRARY3 are loaded. Exit code 0: what was called while patched came to us,
 *                                 and nothing did after the slots were restored.
 */
#include "../../../support/programs/libc.h"

#include "preload/freestanding/bytes.h"
#include "preload/segment/attach_abi.h"
#include "preload/hooks/names.h"
#include "preload/hooks/plt_hook.h"

#define PLUGS 4
#define CYCLES 20
#define PAUSE_US 2000
/* Until a call came to us: on a busy machine the threads may wait long for a processor. */
#define PATIENCE_CYCLES 10000

static unsigned long n_calls;
static const char *library;
static int is_over, least_cycles = CYCLES;

static void *counted_malloc(size_t size)
{
	__atomic_fetch_add(&n_calls, 1, __ATOMIC_RELAXED);
	return malloc(size);
}

/* In the place of hooks/names.c: one function, and the shim's other parts stay away. */
struct ml_hook ml_hooks[ML_HOOKS] = { { "malloc", 0, NULL, ML_HOOK_ALLOCATOR, 0 } };
enum ml_libc ml_hook_libc = ML_LIBC_GLIBC;

unsigned int ml_hook_number(const char *name)
{
	return ml_is_same_text(name, "malloc") ? 0 : ML_HOOKS;
}

void ml_hook_scan_module(const struct ml_elf *elf, const struct ml_module *module)
{
	(void)module;
	if (!ml_hooks[0].real)
		ml_hooks[0].real = ml_elf_find(elf, "malloc");
}

void ml_hook_name_pairs(const struct ml_view *view)
{
	(void)view;
}

void ml_hook_adopt_pairs(void)
{
}

int ml_hook_adopt(void)
{
	ml_hooks[0].entry = (unsigned long)counted_malloc;
	return ml_hooks[0].real ? ML_ATTACH_OK : ML_ATTACH_NO_ALLOCATOR;
}

static void call(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	void (*leak_here)(size_t) = handle ? (void (*)(size_t))dlsym(handle, "leak_here") : NULL;

	if (!leak_here)
		abort();
	ml_plt_hook_follow(1);
	leak_here(16);
	dlclose(handle);
	ml_plt_hook_follow(1);
}

static void *plug(void *number)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s%d", library, (int)(long)number);
	while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED))
		call(path);
	return NULL;
}

static int check_alone(void)
{
	unsigned long before;
	char path[4096];

	snprintf(path, sizeof(path), "%s0", library);
	if (ml_plt_hook_patch(ML_HOOKS_OF_PLT) > 0)
		return 2;
	before = n_calls;
	call(path);
	if (n_calls != before + 1)
		return 3;
	if (ml_plt_hook_restore())
		return 4;
	before = n_calls;
	call(path);
	return n_calls == before ? 0 : 5;
}

/* Patches and restores, at least so many times and until a call came to us. */
static int patch_often(void)
{
	for (int i = 0; i < least_cycles || !__atomic_load_n(&n_calls, __ATOMIC_RELAXED); i++) {
		int patched = ml_plt_hook_patch(ML_HOOKS_OF_PLT), left;

		usleep(PAUSE_US);
		left = ml_plt_hook_restore();
		if (patched < 0 || left) {
			fprintf(stderr, "cycle %d: patched %d, left %d\n", i, patched, left);
			return 6;
		}
		if (i == PATIENCE_CYCLES)
			return 7;
	}
	return 0;
}

int main(int argc, char **argv)
{
	pthread_t threads[PLUGS];
	int result;

	library = argv[1];
	if (argc > 2)
		least_cycles = atoi(argv[2]);
	if (ml_plt_hook_find_originals())
		return 1;
	for (long i = 0; i < PLUGS; i++)
		pthread_create(&threads[i], NULL, plug, (void *)i);
	result = patch_often();
	__atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < PLUGS; i++)
		pthread_join(threads[i], NULL);
	return result ? result : check_alone();
}

// SPDX-License-Identifier: Apache-2.0
/*
 * A program for any libc that brings in the shim itself, without a header: attach SHIM LINE [LIBRARY]. Prints what came of it.
 */
typedef __SIZE_TYPE__ size_t;

void *malloc(size_t size);
void *calloc(size_t n, size_t size);
void *realloc(void *old, size_t size);
void free(void *pointer);
char *strdup(const char *text);
int dprintf(int fd, const char *format, ...);

/* Of a library that libc needs: not there when this is linked. */
#define WEAK __attribute__((weak))
WEAK void *dlopen(const char *path, int flags);
WEAK void *dlsym(void *handle, const char *name);
WEAK char *dlerror(void);

#define RTLD_NOW 2
#define HELD 64

static void *volatile kept[HELD];

static __attribute__((noinline)) void hold(int from, int n, size_t size)
{
	for (int i = 0; i < n; i++)
		kept[from + i] = malloc(size);
}

static int run(const char *path, const char *line, const char *library)
{
	int (*attach)(const char *), (*detach)(void), result;
	void *shim = dlopen(path, RTLD_NOW), *loaded;
	void (*leak_here)(size_t);

	attach = shim ? (int (*)(const char *))dlsym(shim, "memleak_attach") : 0;
	detach = shim ? (int (*)(void))dlsym(shim, "memleak_detach") : 0;
	if (!attach || !detach) {
		dprintf(2, "%s\n", dlerror());
		return 1;
	}
	hold(0, 5, 101);
	result = attach(line);
	dprintf(1, "attach %d\n", result);
	hold(5, 7, 103);
	kept[20] = calloc(7, 19);
	kept[21] = realloc(malloc(13), 70001);
	kept[22] = strdup("of libc's own, where libc calls itself through slots");
	for (int i = 0; i < 6; i++)
		free(kept[i]);
	loaded = library ? dlopen(library, RTLD_NOW) : 0;
	leak_here = loaded ? (void (*)(size_t))dlsym(loaded, "leak_here") : 0;
	if (leak_here)
		leak_here(107);
	dprintf(1, "library %d\n", leak_here != 0);
	dprintf(1, "detach %d\n", detach());
	hold(30, 3, 109);
	return 0;
}

int main(int argc, char **argv)
{
	return run(argv[1], argv[2], argc > 3 ? argv[3] : (const char *)0);
}

#include "start.h"

/*
 * A program that brings in the shim itself: what an injector makes a target do, command by command.
 *
 *   slot_workload SHIM             reads commands from standard input, answers each with one line
 *
 *   attach LINE | detach             the entry points' result
 *   leak N SIZE                      N blocks that stay
 *   copy SIZE                        a block that libc itself allocates (strdup)
 *   free                             the oldest block of the program's own that is left
 *   load N SECONDS | wait            N threads that allocate and free; their end
 *   plug N SECONDS LIBRARY           N threads that bring in LIBRARY0, LIBRARY1 …, call leak_here(16) and let it go
 *   open LIBRARY | close             dlopen; dlclose of the last one
 *   call FUNCTION SIZE               FUNCTION(SIZE) of the last library
 *   fork N SIZE                      a child leaks so
 */
#include "../../support/programs/libc.h"

#if defined(SHARE_SLOTS) || defined(SPOIL)
#include <link.h>
#include <sys/mman.h>

/* Of the program's own segments, before main(). */
static int prepare(struct dl_phdr_info *info, size_t bytes, void *unused)
{
	for (const ElfW(Phdr) *segment = info->dlpi_phdr; segment < info->dlpi_phdr + info->dlpi_phnum; segment++) {
		unsigned long start = info->dlpi_addr + segment->p_vaddr, low = start & ~4095ul;
#ifdef SHARE_SLOTS /* a file over its slots, read-only and shared: no store may go there */
		unsigned long high = start + segment->p_memsz & ~4095ul;
		int fd = segment->p_type == PT_GNU_RELRO ? memfd_create("slots", 0) : -1;

		if (fd >= 0 && write(fd, (void *)low, high - low) > 0)
			mmap((void *)low, high - low, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
#else /* a lie in its dynamic section, after the loader is done with it */
		if (segment->p_type != PT_DYNAMIC)
			continue;
		mprotect((void *)low, 8192, PROT_READ | PROT_WRITE);
		for (ElfW(Dyn) *entry = (void *)start; entry->d_tag; entry++)
			if (entry->d_tag == SPOIL)
				entry->d_un.d_val = VALUE;
#endif
	}
	return 1;
}

__attribute__((constructor)) static void first(void)
{
	dl_iterate_phdr(prepare, 0);
}
#endif

#define BLOCKS_MAX 100000
#define THREADS_MAX 16
#define LIBRARIES_MAX 16

static void *blocks[BLOCKS_MAX];
static int n_blocks, n_freed;
static pthread_t threads[THREADS_MAX];
static int n_threads;
static double seconds;
static void *libraries[LIBRARIES_MAX];
static int n_libraries;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static __attribute__((noinline)) void leak(int n, size_t size)
{
	for (int i = 0; i < n && n_blocks < BLOCKS_MAX; i++)
		blocks[n_blocks++] = malloc(size);
}

static void *churn(void *unused)
{
	double end = now() + seconds;

	while (now() < end) {
		void *held[64];

		for (int i = 0; i < 64; i++)
			held[i] = i % 3 ? malloc((size_t)i * 16 + 1) : calloc(1, (size_t)i * 16 + 1);
		for (int i = 0; i < 64; i += 2)
			held[i] = realloc(held[i], (size_t)i * 24 + 1);
		for (int i = 0; i < 64; i++)
			free(held[i]);
	}
	return NULL;
}

static char plugins[512];

static void *plug(void *number)
{
	double end = now() + seconds;
	char path[600];

	snprintf(path, sizeof(path), "%s%d", plugins, (int)(long)number);
	while (now() < end) {
		void *library = dlopen(path, RTLD_NOW);
		void (*function)(size_t) = library ? (void (*)(size_t))dlsym(library, "leak_here") : NULL;

		if (!function)
			abort();
		function(16);
		dlclose(library);
	}
	return NULL;
}

static void fork_one(int n, size_t size)
{
	pid_t child = fork();
	int status;

	if (!child) {
		leak(n, size);
		_exit(0);
	}
	waitpid(child, &status, 0);
	printf("%d\n", status);
}

static void load(int n, double duration, void *(*work)(void *))
{
	seconds = duration;
	for (n_threads = 0; n_threads < n && n_threads < THREADS_MAX; n_threads++)
		pthread_create(&threads[n_threads], NULL, work, (void *)(long)n_threads);
	puts("ok");
}

static void wait_for_threads(void)
{
	while (n_threads)
		pthread_join(threads[--n_threads], NULL);
	puts("ok");
}

static void call(const char *name, size_t size)
{
	void (*function)(size_t) = (void (*)(size_t))dlsym(libraries[n_libraries - 1], name);

	if (function)
		function(size);
	puts(function ? "ok" : "no such function");
}

static void open_library(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);

	if (library)
		libraries[n_libraries++] = library;
	puts(library ? "ok" : dlerror());
}

int main(int argc, char **argv)
{
	static char line[4096], word[32], text[4096];
	void *shim = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
	int (*attach)(const char *) = shim ? (int (*)(const char *))dlsym(shim, "memleak_attach") : NULL;
	int (*detach)(void) = shim ? (int (*)(void))dlsym(shim, "memleak_detach") : NULL;
	unsigned long size = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	puts(attach && detach ? "ready" : dlerror());
	while (attach && fgets(line, sizeof(line), stdin)) {
		int n = 0;

		line[strcspn(line, "\n")] = 0;
		sscanf(line, "%31s", word);
		if (!strcmp(word, "attach"))
			printf("%d\n", attach(line + 7));
		else if (!strcmp(word, "detach"))
			printf("%d\n", detach());
		else if (sscanf(line, "leak %d %lu", &n, &size) == 2)
			leak(n, size), puts("ok");
		else if (sscanf(line, "copy %lu", &size) == 1)
			memset(text, 'x', size - 1), text[size - 1] = 0, blocks[n_blocks++] = strdup(text), puts("ok");
		else if (!strcmp(word, "free"))
			free(blocks[n_freed++]), puts("ok");
		else if (sscanf(line, "load %d %s", &n, text) == 2)
			load(n, atof(text), churn);
		else if (sscanf(line, "plug %d %31s %511s", &n, text, plugins) == 3)
			load(n, atof(text), plug);
		else if (!strcmp(word, "wait"))
			wait_for_threads();
		else if (sscanf(line, "open %s", text) == 1)
			open_library(text);
		else if (!strcmp(word, "close"))
			printf("%d\n", dlclose(libraries[--n_libraries]));
		else if (sscanf(line, "call %31s %lu", text, &size) == 2)
			call(text, size);
		else if (sscanf(line, "fork %d %lu", &n, &size) == 2)
			fork_one(n, size);
		else
			puts("?");
	}
	return 0;
}

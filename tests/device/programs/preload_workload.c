// SPDX-License-Identifier: Apache-2.0
/* Programs that allocate in ways a recorder may get wrong. Sizes are prime, so that doubling or rounding shows. */
#include "../../support/programs/libc.h"
#include <ucontext.h>

/* Pointers that are kept; volatile, so that no allocation is optimised away. */
static void *volatile kept[300000];
static int n_kept;

static void *keep(void *pointer)
{
	kept[__atomic_fetch_add(&n_kept, 1, __ATOMIC_RELAXED)] = pointer;
	return pointer;
}

static int families(void)
{
	void *aligned = NULL;
	void *old;

	keep(malloc(101));
	keep(calloc(7, 19));
	keep(realloc(NULL, 137));
	keep(realloc(malloc(13), 151));
	keep(reallocarray(NULL, 3, 67));
	if (posix_memalign(&aligned, 64, 211) == 0)
		keep(aligned);
	keep(memalign(128, 223));
	keep(aligned_alloc(64, 256));
	keep(valloc(307));
	keep(pvalloc(311));
	old = malloc(17);
	free(realloc(old, 170000));
	if (realloc(malloc(19), 0))
		return 1;
	return 0;
}

/* Calls that fail change nothing. */
static int failures(void)
{
	size_t huge = (size_t)PTRDIFF_MAX + 1;
	volatile size_t half = SIZE_MAX / 2 + 2;
	void *aligned = (void *)0x123450;
	void *block = keep(malloc(1009));

	if (malloc(huge) || calloc(half, 2) || realloc(block, huge) || reallocarray(block, half, 2))
		return 1;
	if (posix_memalign(&aligned, 3, 4242) != EINVAL || memalign(64, huge) || aligned_alloc(64, huge))
		return 2;
	errno = 4711;
	free(malloc(23));
	return errno == 4711 ? 0 : 3;
}

static void *worker(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument;
	void *blocks[64] = { 0 };

	for (int i = 0; i < 20000; i++) {
		int at = rand_r(&seed) % 64;

		if (blocks[at] && i % 7 == 0) {
			blocks[at] = realloc(blocks[at], 1 + (size_t)rand_r(&seed) % 500);
			continue;
		}
		free(blocks[at]);
		blocks[at] = malloc(1 + (size_t)rand_r(&seed) % 500);
	}
	for (int i = 0; i < 64; i++)
		free(blocks[i]);
	for (int i = 0; i < 23; i++)
		keep(malloc(1009));
	return NULL;
}

static int threads(void)
{
	pthread_t ids[8];

	for (uintptr_t i = 0; i < 8; i++)
		pthread_create(&ids[i], NULL, worker, (void *)(i + 1));
	for (int i = 0; i < 8; i++)
		pthread_join(ids[i], NULL);
	return 0;
}

static void *leak_once(void *argument)
{
	keep(malloc(1013));
	return argument;
}

static int churn(void)
{
	for (int i = 0; i < 3000; i++) {
		pthread_attr_t attributes;
		pthread_t id;

		/* Another size each time defeats the libc's cache of stacks: thread pointers come and go. */
		pthread_attr_init(&attributes);
		pthread_attr_setstacksize(&attributes, 65536 + 4096 * (size_t)(i % 37));
		pthread_create(&id, &attributes, leak_once, NULL);
		pthread_join(id, NULL);
	}
	return 0;
}

static volatile int n_handled;

static void allocate_in_handler(int number)
{
	void *block = malloc(509);

	(void)number;
	int number_of_this = n_handled;

	n_handled = number_of_this + 1;
	if (number_of_this % 10 == 0)
		keep(block);
	else
		free(block);
}

static char *volatile frame;

static void note_frame(int number)
{
	char here;

	(void)number;
	frame = &here;
}

/* A handler on a stack that has 1400 bytes beyond the signal's frame, above memory that ends the program. */
static int small_stack(void)
{
	static const size_t large = 1 << 16, room = 1400;
	char *pages = mmap(NULL, 2 * large, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *low = pages + large;

	free(malloc(1)); /* the dynamic linker's look-up takes more */
	mprotect(low, large, PROT_READ | PROT_WRITE);
	sigaltstack(&(stack_t){ .ss_sp = low, .ss_size = large }, NULL);
	sigaction(SIGUSR1, &(struct sigaction){ .sa_handler = note_frame, .sa_flags = SA_ONSTACK }, NULL);
	raise(SIGUSR1);
	sigaltstack(&(stack_t){ .ss_sp = low, .ss_size = (size_t)(low + large - frame) + room }, NULL);
	sigaction(SIGUSR1, &(struct sigaction){ .sa_handler = allocate_in_handler, .sa_flags = SA_ONSTACK }, NULL);
	for (int i = 0; i < 200; i++)
		raise(SIGUSR1);
	return 0;
}

/* Blocks whose sizes say which thread allocated them. */
static void *leak_its_number(void *argument)
{
	for (int i = 0; i < 3; i++)
		keep(malloc(100000 + (size_t)syscall(SYS_gettid)));
	return argument;
}

/* Threads one after another, with the same stack and thread pointer. */
static int successors(void)
{
	for (int i = 0; i < 6; i++) {
		pthread_t id;

		pthread_create(&id, NULL, leak_its_number, NULL);
		pthread_join(id, NULL);
	}
	return 0;
}

/* Needs an allocator that may be interrupted anywhere: linked with own_allocator.c. */
static int signals(void)
{
	struct itimerspec often = { { 0, 20000 }, { 0, 20000 } };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2 };
	timer_t timer;

	signal(SIGUSR2, allocate_in_handler);
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	timer_settime(timer, 0, &often, NULL);
	for (int i = 0; n_handled < 5000; i++) {
		void *block = malloc(31 + (size_t)i % 64);

		if (i % 1000 == 0 && i < 100000)
			keep(realloc(block, 31 + (size_t)i % 64));
		else
			free(block);
	}
	timer_delete(timer);
	return 0;
}

static void *on_small_stack(void *argument)
{
	stack_t stack = { .ss_sp = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
			  .ss_size = 16384 };
	struct sigaction action = { .sa_handler = allocate_in_handler, .sa_flags = SA_ONSTACK };

	sigaltstack(&stack, NULL);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	return argument;
}

static ucontext_t main_context, coroutine_context;

static void coroutine(void)
{
	keep(malloc(521));
	swapcontext(&coroutine_context, &main_context);
	keep(malloc(523));
}

/* Stacks that belong to no thread, mapped and unmapped while others use the same addresses. */
static int stacks(void)
{
	pthread_t id;

	pthread_create(&id, NULL, on_small_stack, NULL);
	pthread_join(id, NULL);
	on_small_stack(NULL);
	for (size_t i = 0; i < 50; i++) {
		size_t bytes = 16384 + 4096 * (i % 5);
		char *stack = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		getcontext(&coroutine_context);
		coroutine_context.uc_stack.ss_sp = stack;
		coroutine_context.uc_stack.ss_size = bytes;
		coroutine_context.uc_link = &main_context;
		makecontext(&coroutine_context, coroutine, 0);
		swapcontext(&main_context, &coroutine_context);
		swapcontext(&main_context, &coroutine_context);
		munmap(stack, bytes);
	}
	return 0;
}

static int forks(void)
{
	for (int i = 0; i < 11; i++)
		keep(malloc(1013));
	if (fork() == 0) {
		for (int i = 0; i < 11; i++)
			free(kept[i]);
		for (int i = 0; i < 7; i++)
			keep(malloc(2029));
		_exit(0);
	}
	wait(NULL);
	if (vfork() == 0) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	wait(NULL);
	keep(malloc(1019));
	return 0;
}

static int many(int n, size_t size)
{
	for (int i = 0; i < n; i++)
		keep(malloc(size));
	return 0;
}

/* Ends at once, after one block of the library's. */
static int load(const char *way, const char *path)
{
	int flags = RTLD_NOW | (strcmp(way, "deep") ? 0 : RTLD_DEEPBIND);
	void *library = strcmp(way, "namespace") ? dlopen(path, flags) : dlmopen(LM_ID_NEWLM, path, flags);
	void (*leak)(void) = library ? (void (*)(void))dlsym(library, "leak") : NULL;

	if (leak)
		leak();
	return !leak;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(void);
	} ways[] = {
		{ "families", families }, { "failures", failures }, { "threads", threads }, { "churn", churn },
		{ "signals", signals },	  { "stacks", stacks },	    { "forks", forks },	    { "successors", successors },
		{ "small_stack", small_stack },
	};
	const char *what = argc > 1 ? argv[1] : "";

	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		if (!strcmp(what, ways[i].name))
			return ways[i].run();
	if (!strcmp(what, "many") && argc > 3)
		return many(atoi(argv[2]), (size_t)atoi(argv[3]));
	if (!strcmp(what, "loads") && argc > 3)
		return load(argv[2], argv[3]);
	if (!strcmp(what, "execs")) {
		keep(malloc(4093));
		execl("/proc/self/exe", argv[0], "many", "5", "1031", (char *)NULL);
	}
	if (!strcmp(what, "environment"))
		return !!getenv("MEMLEAK_SESSION") | (getenv("LD_PRELOAD") ? 2 : 0);
	return 99;
}

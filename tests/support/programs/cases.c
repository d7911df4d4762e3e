/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of a few lines: -DNAME=main makes one of these functions the program NAME (tests/support/workloads.py). */
#include "libc.h"

void *volatile kept, *volatile kept_too[2];

__attribute__((noinline)) static void leak(size_t size)
{
	kept = malloc(size);
}

/* argv[1] blocks of argv[2] bytes are leaked. */
int plain_leak(int argc, char **argv)
{
	if (argc != 3)
		return 3;
	for (unsigned long i = strtoul(argv[1], NULL, 10); i > 0; i--)
		leak(strtoul(argv[2], NULL, 10));
	return 0;
}

static void on_signal(int number)
{
	leak((size_t)number);
}

/* A signal handler leaks on a stack of its own. */
int alternate_stack(void)
{
	static char memory[65536];
	const stack_t stack = { .ss_sp = memory, .ss_size = sizeof(memory) };
	const struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };

	return sigaltstack(&stack, NULL) || sigaction(SIGUSR1, &action, NULL) || raise(SIGUSR1);
}

/* argv[1] times malloc(argv[2]) and free. */
int pairs(int argc, char **argv)
{
	void *volatile block;

	if (argc != 3)
		return 3;
	for (unsigned long i = strtoul(argv[1], NULL, 10), size = strtoul(argv[2], NULL, 10); i > 0; i--) {
		block = malloc(size);
		free(block);
	}
	return 0;
}

/* argv[1]: realloc = a real leak behind a failed realloc; memalign, calloc = failed calls that leave nothing;
 * zero = realloc to 0 frees. */
int failed_calls(int argc, char **argv)
{
	static volatile size_t huge = (size_t)1 << 62, odd = 3;
	const char *which = argc > 1 ? argv[1] : "";
	void *out = (void *)0x123450;

	if (!strcmp(which, "realloc")) {
		kept = malloc(1009);
		return realloc(kept, huge) != NULL;
	}
	if (!strcmp(which, "memalign"))
		return posix_memalign(&out, odd, 4242) == 0;
	if (!strcmp(which, "calloc"))
		return calloc(huge, 8 * odd) != NULL || malloc(SIZE_MAX / odd * 2) != NULL ||
		       reallocarray(NULL, huge, 8) != NULL || aligned_alloc(64, huge * 2 - 64) != NULL;
	if (!strcmp(which, "zero")) {
		kept = malloc(1013);
		return realloc(kept, odd - 3) != NULL;
	}
	return 3;
}

__attribute__((noipa)) static void leak_large(size_t size)
{
	printf("%p\n", malloc(size));
}

/* Blocks above the mmap threshold: malloc calls mmap inside. Prints each address. */
int large_blocks(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	for (int i = 0; i < 5; i++)
		leak_large(200000);
	return 0;
}

static void *map(size_t bytes, int rights, int flags)
{
	return mmap(NULL, bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

__attribute__((noinline)) static void *reserve(void)
{
	return map(1ull << 41, PROT_NONE, MAP_NORESERVE);
}

__attribute__((noinline)) static char *sixteen_pages(void)
{
	return map(16 * 4096, PROT_READ | PROT_WRITE, 0);
}

__attribute__((noinline)) static void *grown(void)
{
	return mremap(map(3 * 4096, PROT_READ | PROT_WRITE, 0), 3 * 4096, 7 * 4096, MREMAP_MAYMOVE);
}

/* mmap: 2 TiB reserved; 16 pages of which 5 in the middle are unmapped; one grown by mremap. */
int regions(void)
{
	char *pages = sixteen_pages();

	return reserve() == MAP_FAILED || munmap(pages + 3 * 4096, 5 * 4096) || grown() == MAP_FAILED;
}

#define LINK(name, next)                                                                                       \
	__attribute__((noinline)) static int name(int n)                                                       \
	{                                                                                                      \
		volatile char local[24] = { (char)n };                                                         \
		return next(n + local[0]) + local[0];                                                          \
	}

__attribute__((noinline)) static int link7(int n)
{
	kept = malloc(4007);
	return kept != NULL && n;
}
LINK(link6, link7)
LINK(link5, link6)
LINK(link4, link5)
LINK(link3, link4)
LINK(link2, link3)
LINK(link1, link2)

/* Seven functions deep, no frame pointers, no tail calls. */
int deep_chain(int argc, char **argv)
{
	(void)argv;
	return link1(argc) == 1000;
}

static int left(unsigned path, int depth);
static int right(unsigned path, int depth);

__attribute__((noinline)) static int down(unsigned path, int depth)
{
	if (depth == 0) {
		kept = malloc(13);
		return 1;
	}
	return (path & 1 ? left(path >> 1, depth - 1) : right(path >> 1, depth - 1)) + 1;
}

__attribute__((noinline)) static int left(unsigned path, int depth)
{
	return down(path, depth) + 2;
}

__attribute__((noinline)) static int right(unsigned path, int depth)
{
	return down(path, depth) + 3;
}

/* argv[1] distinct stacks, one leaked block each: the path down is spelled by the bits of the number.
 * argv[2]: microseconds to sleep after every 100, or "-": a byte of standard input is read after every 100. */
int many_stacks(int argc, char **argv)
{
	unsigned stacks = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;

	for (unsigned i = 0; i < stacks; i++) {
		down(i, 14);
		if (argc <= 2 || i % 100 != 99)
			continue;
		if (*argv[2] == '-')
			getchar();
		else
			usleep(strtoul(argv[2], NULL, 10));
	}
	return 0;
}

static void *drive(void *first)
{
	for (uintptr_t road = (uintptr_t)first;; road++) {
		down(road, 14);
		usleep(1000);
	}
}

/* Three threads allocate by new call paths for longer than any session; nothing is freed. */
int drives(void)
{
	pthread_t thread;

	alarm(120);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	for (uintptr_t i = 0; i < 3; i++)
		pthread_create(&thread, NULL, drive, (void *)(i << 12));
	puts("driving");
	fflush(stdout);
	close(1); /* its reader must not wait for the end */
	close(2);
	return pause();
}

/* Allocates again and again, and writes the time before each call to the file argv[1]. */
int timed_calls(int argc, char **argv)
{
	int file = open(argv[argc - 1], O_RDWR | O_CREAT, 0600);
	struct timespec *at = mmap(NULL, 16 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	if (ftruncate(file, 16 << 20))
		return 1;
	for (size_t i = 0; i < (16 << 20) / sizeof(*at); i++, usleep(100)) {
		clock_gettime(CLOCK_MONOTONIC, &at[i]);
		kept = malloc(23);
	}
	return 0;
}

/* ---- on request ---------------------------------------------------------------------------------------- */

/* Leaks argv[1] blocks of 1009 bytes, writes a line, and goes on when its standard input ends. */
int waits(int argc, char **argv)
{
	char byte;

	for (int i = argc > 1 ? atoi(argv[1]) : 0; i > 0; i--)
		kept = malloc(1009);
	if (write(1, "ready\n", 6) != 6)
		return 1;
	while (read(0, &byte, 1) > 0)
		kept = malloc(1013);
	return 0;
}

__attribute__((noipa)) static int inner(int n)
{
	kept = malloc(1013);
	return kept != NULL && n;
}

__attribute__((noipa)) static int middle(int n)
{
	volatile char local[24] = { (char)n };

	return inner(n + local[0]) + local[0];
}

__attribute__((noipa)) static int outer(int n)
{
	volatile char local[40] = { (char)n };

	return middle(n + local[0]) + local[0];
}

/* Writes a line; leaks 1013 bytes, by three functions, for every byte of its standard input; ends with that. */
int leaks_when_told(void)
{
	char byte;

	if (write(1, "ready\n", 6) != 6)
		return 1;
	while (read(0, &byte, 1) > 0)
		outer(byte);
	return 0;
}

__attribute__((noinline)) static void hold(size_t size)
{
	kept = malloc(size);
}

/* At each line of its input it allocates argv[1] blocks of argv[2] bytes, and says so; it ends with its input. */
int holds_on_word(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[1]) : 0;
	size_t size = argc > 2 ? (size_t)atol(argv[2]) : 0;
	char line[64];

	while (read(0, line, sizeof(line)) > 0) {
		for (int i = 0; i < count; i++)
			hold(size);
		if (write(1, "held\n", 5) != 5)
			return 1;
	}
	return 0;
}

/* ---- threads and processes ----------------------------------------------------------------------------- */

static pthread_barrier_t both_live;

__attribute__((noinline)) static void leak_in_arena(long i)
{
	kept_too[i] = malloc(64);
}

static void *meet(void *number)
{
	pthread_barrier_wait(&both_live);
	leak_in_arena((long)number);
	pthread_barrier_wait(&both_live);
	return NULL;
}

/* Two threads, each with an arena of its own: the reservation of 128 MiB is no block. */
int two_arenas(void)
{
	pthread_t threads[2];

	pthread_barrier_init(&both_live, NULL, 2);
	for (long i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, meet, (void *)i);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

static void *wait_for_child(void *unused)
{
	if (!vfork()) {
		if (write(1, "w", 1) == 1)
			sleep(30);
		_exit(0);
	}
	return unused;
}

/* A thread waits in vfork() for its child: no signal and no tracer stops it. Writes a byte once it is so. */
int vfork_waits(void)
{
	pthread_t id;

	pthread_create(&id, 0, wait_for_child, 0);
	return pthread_join(id, 0);
}

__attribute__((noipa)) static void leak_in_child(size_t size)
{
	kept = malloc(size);
}

/* Keeps 7 bytes and forks argv[1] children, one after the other, each of which keeps 11 bytes by the same call. */
int forks(int argc, char **argv)
{
	kept = malloc(7);
	for (int i = argc > 1 ? atoi(argv[1]) : 0; i > 0; i--) {
		pid_t child = fork();

		if (child == 0) {
			leak_in_child(11);
			_exit(0);
		}
		if (child < 0 || waitpid(child, NULL, 0) != child)
			return 1;
	}
	return 0;
}

/* argv[1] processes, fork and exec of this program, each of which lives 5 ms and leaks 7 blocks of 1009 bytes. */
int many_processes(int argc, char **argv)
{
	for (int i = 0; argc == 1 && i < 7; i++)
		leak_in_child(1009);
	if (argc == 1)
		return usleep(5000);
	for (int i = atoi(argv[1]); i > 0; i--) {
		pid_t child = fork();

		if (child == 0) {
			execl("/proc/self/exe", argv[0], (char *)NULL);
			_exit(127);
		}
		if (child < 0 || waitpid(child, NULL, 0) != child)
			return 1;
	}
	return 0;
}

/* Three children hold 1, 2 and 3 MiB and their parent 5, written to, for 8 s, longer than the measurement. */
int held_by_each(void)
{
	unsigned long mib = 5;
	char *volatile block;

	close(1);
	close(2);
	for (unsigned long i = 1; i <= 3 && mib == 5; i++)
		if (!fork())
			mib = i;
	block = malloc(mib << 20);
	for (unsigned long i = 0; i < mib << 20; i += 64)
		block[i] = 1;
	sleep(8);
	while (mib == 5 && wait(NULL) > 0)
		;
	return 0;
}

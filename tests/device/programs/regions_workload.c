// SPDX-License-Identifier: Apache-2.0
/*
 * Mappings made, cut and moved in every way. Where the address matters it is asked for, far from everything else, so
 * that all runs see the same. Exits with the line number of what went wrong, modulo 256.
 */
#include "../../support/programs/libc.h"

#define PAGE 4096ul
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)
#define BASE ((char *)0x200000000000ul)
#define CHECK(condition)                       \
	do {                                   \
		if (!(condition))              \
			_exit(__LINE__ % 256); \
	} while (0)

/* Pages from BASE on; the address is a wish that the kernel grants when it is free. */
static char *map_at(unsigned long page, unsigned long n, int more_flags)
{
	char *wanted = BASE + page * PAGE;

	CHECK(mmap(wanted, n * PAGE, PROT_READ | PROT_WRITE, PRIVATE | more_flags, -1, 0) == wanted);
	return wanted;
}

static void unmap_at(unsigned long page, unsigned long n)
{
	CHECK(!munmap(BASE + page * PAGE, n * PAGE));
}

/* tests/device/shim/test_preload_regions.py: PARTS says what is left, in pages. */
static void cut_parts(void)
{
	map_at(0, 16, 0); /* first, last, and some in the middle */
	unmap_at(0, 2);
	unmap_at(14, 2);
	unmap_at(5, 3);
	map_at(100, 4, 0); /* across two and a gap */
	map_at(106, 4, 0);
	unmap_at(102, 6);
	map_at(200, 8, 0); /* the middle replaced */
	map_at(202, 3, MAP_FIXED);
	map_at(300, 2, 0); /* two and a gap replaced */
	map_at(304, 2, 0);
	map_at(299, 8, MAP_FIXED);
	map_at(400, 3, 0); /* whole */
	unmap_at(400, 3);
	unmap_at(400, 3); /* a second time: allowed, and nothing */
	CHECK(mmap(BASE + 500 * PAGE, 5000, PROT_READ, PRIVATE, -1, 0) == BASE + 500 * PAGE); /* two pages */
}

static void move_parts(void)
{
	char *shared = BASE + 920 * PAGE;

	map_at(600, 3, 0); /* grown where it stands */
	CHECK(mremap(BASE + 600 * PAGE, 3 * PAGE, 7 * PAGE, 0) == BASE + 600 * PAGE);
	map_at(700, 9, 0); /* shrunk */
	CHECK(mremap(BASE + 700 * PAGE, 9 * PAGE, 4 * PAGE, 0) == BASE + 700 * PAGE);
	map_at(800, 4, 0); /* moved over another one */
	map_at(820, 6, 0);
	CHECK(mremap(BASE + 800 * PAGE, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, BASE + 821 * PAGE) ==
	      BASE + 821 * PAGE);
	map_at(840, 8, 0); /* a part of it moved */
	CHECK(mremap(BASE + 842 * PAGE, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, BASE + 860 * PAGE) ==
	      BASE + 860 * PAGE);
	CHECK(mmap(shared, 2 * PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == shared); /* seen twice */
	CHECK(mremap(shared, 0, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, BASE + 930 * PAGE) == BASE + 930 * PAGE);
}

static void *volatile kept;

/* Failures change nothing but errno, successes not even that. */
static void fail(void)
{
	void *unknown = (void *)syscall(SYS_mmap, BASE + 1000 * PAGE, PAGE, PROT_READ, PRIVATE, -1, 0);

	map_at(1010, 5, 0);
	errno = 0;
	CHECK(mmap(BASE + 1010 * PAGE, 0, PROT_READ, PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EINVAL);
	errno = 0;
	CHECK(mmap64(BASE + 1010 * PAGE, PAGE, PROT_READ, MAP_PRIVATE, 9999, 0) == MAP_FAILED && errno == EBADF);
	errno = 0;
	CHECK(munmap(BASE + 1010 * PAGE + 1, PAGE) == -1 && errno == EINVAL);
	errno = 0;
	CHECK(mremap(BASE + 1010 * PAGE, 5 * PAGE, 0, 0) == MAP_FAILED && errno == EINVAL);
	errno = 0;
	CHECK(mremap(BASE + 1010 * PAGE, 9 * PAGE, 12 * PAGE, 0) == MAP_FAILED && errno == EFAULT);
	errno = 77;
	CHECK(!munmap(unknown, PAGE) && errno == 77);
	map_at(1020, 1, 0);
	CHECK(errno == 77);
	free(malloc(1 << 20)); /* the allocator's own */
	kept = malloc(1 << 20);
	CHECK(errno == 77);
}

static int parts(void)
{
	cut_parts();
	move_parts();
	fail();
	return 0;
}

/* ---- threads that unmap what others mapped, at once --------------------------------------------------- */

#define THREADS 4
#define ROUNDS 20000
#define KEPT 50

static void *_Atomic handed[8];
static FILE *list;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

static void note(const char *region)
{
	pthread_mutex_lock(&list_lock);
	fprintf(list, "%p\n", (void *)region);
	pthread_mutex_unlock(&list_lock);
}

static void *pass_on(void *argument)
{
	for (unsigned round = 0; round < ROUNDS; round++) {
		char *mine = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, PRIVATE, -1, 0);
		char *other;

		CHECK(mine != MAP_FAILED);
		if (round % (ROUNDS / KEPT) == 0) {
			note(mine);
			continue;
		}
		other = __atomic_exchange_n((void **)&handed[round % 8], mine, __ATOMIC_ACQ_REL);
		if (other)
			CHECK(!munmap(other, PAGE));
	}
	return NULL;
}

static int threads(const char *path)
{
	pthread_t ids[THREADS];

	CHECK((list = fopen(path, "w")) != NULL);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&ids[i], NULL, pass_on, NULL));
	for (int i = 0; i < THREADS; i++)
		pthread_join(ids[i], NULL);
	for (int i = 0; i < 8; i++)
		if (handed[i])
			note(handed[i]);
	return fclose(list);
}

/* ---- handlers ----------------------------------------------------------------------------------------- */

static volatile sig_atomic_t n_handled;

static void handle(int number)
{
	void *region = mmap(NULL, 3 * PAGE, PROT_READ, PRIVATE, -1, 0);

	CHECK(region != MAP_FAILED && !munmap(region, 3 * PAGE));
	n_handled++;
}

static int signals(void)
{
	struct sigaction action = { .sa_handler = handle, .sa_flags = SA_RESTART };
	struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { { 0, 0 }, { 0, 0 } };

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	for (int i = 0; n_handled < 300; i++) {
		void *region = mmap(NULL, 2 * PAGE, PROT_READ, PRIVATE, -1, 0);

		CHECK(region != MAP_FAILED && !munmap(region, 2 * PAGE));
	}
	setitimer(ITIMER_REAL, &never, NULL);
	map_at(0, 7, 0);
	return 0;
}

/* ---- processes ---------------------------------------------------------------------------------------- */

static int forks(void)
{
	int status = -1;
	pid_t child;

	map_at(0, 4, 0);
	child = fork();
	if (!child) {
		unmap_at(0, 1); /* its own copy; it never heard of the rest */
		map_at(50, 2, 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
	return 0;
}

static int execs(char **argv)
{
	char *again[] = { argv[0], "parts", NULL };

	map_at(5000, 4, 0);
	execv(argv[0], again);
	return 1;
}

int main(int argc, char **argv)
{
	CHECK(argc > 1);
	if (!strcmp(argv[1], "parts"))
		return parts();
	if (!strcmp(argv[1], "threads") && argc > 2)
		return threads(argv[2]);
	if (!strcmp(argv[1], "signals"))
		return signals();
	if (!strcmp(argv[1], "forks"))
		return forks();
	return strcmp(argv[1], "execs") ? 2 : execs(argv);
}

/* A program with its own pool allocator, file descriptors and threads: it keeps what its arguments say. */
#include "../../../support/programs/libc.h"

static char arena[1 << 20];
static size_t used;
int pool_data = 1;

static inline __attribute__((always_inline)) size_t pool_rounded(size_t bytes)
{
	return (bytes + 15) & ~15ul;
}

__attribute__((noinline)) void *pool_take(size_t bytes)
{
	void *block = arena + used;

	if (!bytes)
		return NULL;
	used += pool_rounded(bytes);
	return block;
}

/* Calls the other acquire of its family: one block, its own. */
__attribute__((noinline)) void *pool_take_many(size_t count, size_t bytes)
{
	char *block = pool_take(count * bytes);

	__asm__ volatile("" : "+r"(block));
	return block;
}

__attribute__((noinline)) int pool_open(void **out, size_t bytes)
{
	*out = bytes > 4096 ? (void *)0x1230 : pool_take(bytes);
	return bytes > 4096 ? -1 : 0;
}

/* 0 for more than a page: what was there stays. */
__attribute__((noinline)) void *pool_resize(void *old, size_t bytes)
{
	__asm__ volatile("" : : "r"(old) : "memory");
	return bytes > 4096 ? NULL : pool_take(bytes);
}

__attribute__((noinline)) static void resize(void)
{
	void *grown = pool_resize(pool_take(10), 700);

	pool_resize(grown, 5000);
	pool_resize(pool_take(11), 0);
}

__attribute__((noinline)) void pool_give(void *block)
{
	__asm__ volatile("" : : "r"(block) : "memory");
}

__attribute__((noinline)) static void keep_blocks(int n)
{
	for (int i = 0; i < n; i++)
		pool_take(1000 + i % 3);
}

__attribute__((noinline)) static void use_and_give(int n)
{
	for (int i = 0; i < n; i++)
		pool_give(pool_take(64));
}

static void *idle(void *nothing)
{
	return nothing;
}

__attribute__((noinline)) static void leak_files(void)
{
	int ends[2], fd;

	for (int i = 0; i < 7; i++)
		open("/dev/null", O_RDONLY);
	for (int i = 0; i < 20; i++)
		if ((fd = open("/dev/zero", O_RDONLY)) >= 0)
			close(fd);
	open("/no/such/file", O_RDONLY);
	if (pipe(ends))
		abort();
	close(ends[0]);
	fd = dup(ends[1]);
	dup2(ends[1], fd);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		abort();
}

__attribute__((noinline)) static void leak_threads(void)
{
	pthread_t threads[5];

	for (int i = 0; i < 5; i++)
		if (pthread_create(&threads[i], NULL, idle, NULL))
			abort();
	pthread_join(threads[0], NULL);
	pthread_detach(threads[1]);
}

/* With an argument it begins once there is a file of that name. */
int main(int n_arguments, char **arguments)
{
	void *block;

	while (n_arguments > 1 && access(arguments[1], F_OK))
		usleep(10000);
	keep_blocks(30);
	use_and_give(500);
	pool_take(0);
	pool_take_many(10, 20);
	resize();
	pool_open(&block, 300);
	pool_open(&block, 5000);
	leak_files();
	leak_threads();
	free(malloc(5));
	return 0;
}

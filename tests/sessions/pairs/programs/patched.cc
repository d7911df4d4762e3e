// Functions that only the program itself can call, and threads that call them without a pause. For a byte of standard input
// 23 of each are kept, and the program prints its own count of these bytes.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pthread.h>

extern "C" long own_pid();

// A system call among its first bytes: it cannot be moved.
__asm__(".text\n.globl own_pid\n.hidden own_pid\n.type own_pid, @function\nown_pid:\n"
	"mov %edi, %eax\nsyscall\nret\n.size own_pid, . - own_pid\n");

namespace pool
{
struct Block {
	size_t bytes;
};

class Store
{
    public:
	__attribute__((noinline)) static Block *take(size_t bytes);
	__attribute__((noinline)) static void give(Block *block);
};

Block *Store::take(size_t bytes)
{
	Block *block = static_cast<Block *>(malloc(sizeof(Block) + bytes));

	block->bytes = bytes;
	return block;
}

void Store::give(Block *block)
{
	free(block);
}

__attribute__((noinline)) static void *keep_small(size_t bytes)
{
	return malloc(bytes);
}

__attribute__((noinline)) static void *keep_zeroed(size_t bytes)
{
	return calloc(1, bytes);
}

static volatile long n_unkept; // so that it is not the same code as give()

__attribute__((noinline)) static void unkeep(void *kept)
{
	n_unkept = n_unkept + 1;
	free(kept);
}
} // namespace pool

static void *busy(void *)
{
	for (;;) {
		pool::Block *block = pool::Store::take(16);
		void *kept = pool::keep_small(40);

		memset(block + 1, 1, 16);
		pool::Store::give(block);
		pool::unkeep(kept);
	}
}

__attribute__((noinline)) static void keep(long *usable)
{
	static void *volatile kept[3];

	for (int i = 0; i < 23; i++) {
		kept[0] = pool::Store::take(5003);
		kept[1] = pool::keep_small(77);
		kept[2] = pool::keep_zeroed(99);
		*usable += static_cast<long>(malloc_usable_size(kept[1]) + malloc_usable_size(kept[2]));
	}
}

int main(int n_arguments, char **arguments)
{
	int n_threads = n_arguments > 1 ? atoi(arguments[1]) : 0;
	pthread_t thread;
	char order;

	for (int i = 0; i < n_threads; i++)
		pthread_create(&thread, nullptr, busy, nullptr);
	puts("ready");
	fflush(stdout);
	while (read(0, &order, 1) == 1) {
		long usable = 0;

		keep(&usable);
		printf("%ld %d\n", usable, own_pid() == 0);
		fflush(stdout);
	}
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps the library argv[1] (its code and what describes it are its first segment) argv[3] times by itself, so that no
 * linker announces it, and each time lets some threads call its function at the offset argv[2] at once. Each call leaks
 * BYTES.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define BYTES 1237
#define THREADS 6

typedef void *take_function(void *allocate(size_t), size_t bytes);

static pthread_barrier_t begin, end;
static take_function *volatile take;

static void *calls(void *unused)
{
	for (;;) {
		pthread_barrier_wait(&begin);
		if (!take)
			return unused;
		*(void *volatile *)take(malloc, BYTES) = unused;
		pthread_barrier_wait(&end);
	}
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	struct stat library;
	int file = argc == 4 ? open(argv[1], O_RDONLY) : -1;

	if (file < 0 || fstat(file, &library))
		return 2;
	pthread_barrier_init(&begin, NULL, THREADS + 1);
	pthread_barrier_init(&end, NULL, THREADS + 1);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, calls, NULL);
	for (int n = atoi(argv[3]); n >= 0; n--) {
		char *code = mmap(NULL, (size_t)library.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);

		take = n ? (take_function *)(code + atol(argv[2])) : NULL;
		pthread_barrier_wait(&begin);
		if (n)
			pthread_barrier_wait(&end);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

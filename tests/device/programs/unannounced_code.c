/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps the library argv[1] (its code and what describes it are its first segment) argv[3] times by itself, so that no
 * linker announces it, and each time lets some threads call its function at the offset argv[2] at once. Each call leaks
 * BYTES. With argv[4] a thread allocates all the while where the stack leads, by the rules of its code, to addresses that
 * are no code: to one, or ("others") to another each time. With "full" no descriptor is free in the first half of the time.
 */
#include "../../support/programs/libc.h"

#define BYTES 1237
#define THREADS 6
#define DESCRIPTORS 64

typedef void *take_function(void *allocate(size_t), size_t bytes);

static pthread_barrier_t begin, end;
static take_function *volatile take;

#if defined(__x86_64__)
/* Its rules say that what it pushes is the return address. */
__asm__(".text\n"
	".type stray, @function\n"
	"stray:\n"
	".cfi_startproc\n"
	"push %rdi\n"
	"mov $16, %edi\n"
	"sub $16, %rsp\n"
	".cfi_adjust_cfa_offset 16\n"
	"call malloc@PLT\n"
	"add $24, %rsp\n"
	".cfi_adjust_cfa_offset -16\n"
	"ret\n"
	".cfi_endproc\n"
	".size stray, .-stray\n");
void *stray(unsigned long return_address);
#else
static void *stray(unsigned long return_address)
{
	exit(3);
}
#endif

static void *strays(void *others)
{
	for (unsigned long at = 0x5a5a00000000;; at += others ? 4096 : 0) {
		free(stray(at));
		usleep(500);
	}
	return NULL;
}

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

static int taken[DESCRIPTORS], n_taken;

static void take_all_descriptors(void)
{
	struct rlimit limit = { DESCRIPTORS, DESCRIPTORS };

	setrlimit(RLIMIT_NOFILE, &limit);
	while (n_taken < DESCRIPTORS && (taken[n_taken] = dup(0)) >= 0)
		n_taken++;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS], stray_thread;
	struct stat library;
	char *first = NULL;
	int is_full = argc > 4 && !strcmp(argv[4], "full"), half = argc > 3 ? atoi(argv[3]) / 2 : 0;
	int file = argc >= 4 ? open(argv[1], O_RDONLY) : -1;

	if (file < 0 || fstat(file, &library))
		return 2;
	if (argc > 4 && !is_full && pthread_create(&stray_thread, NULL, strays, strcmp(argv[4], "others") ? NULL : argv))
		return 2;
	pthread_barrier_init(&begin, NULL, THREADS + 1);
	pthread_barrier_init(&end, NULL, THREADS + 1);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, calls, NULL);
	for (int n = atoi(argv[3]); n >= 0; n--) {
		char *code = mmap(NULL, (size_t)library.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);

		if (is_full && n == 2 * half)
			take_all_descriptors();
		if (is_full && n == half)
			while (n_taken)
				close(taken[--n_taken]);
		first = first ? first : code;
		if (is_full && n == 1) /* what could not be read at that time */
			code = first;
		take = n ? (take_function *)(code + atol(argv[2])) : NULL;
		pthread_barrier_wait(&begin);
		if (n)
			pthread_barrier_wait(&end);
		if (argc > 4 && !is_full)
			usleep(5000);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * A program for any libc: it includes no header, holds blocks of chains of calls that no compiler may shorten, and says
 * itself what it holds. Sizes are prime, so that doubling or rounding shows.
 */
typedef __SIZE_TYPE__ size_t;
typedef unsigned long thread_id; /* bionic: pthread_internal_t *, glibc: unsigned long */

void *malloc(size_t size);
void *calloc(size_t n, size_t size);
void *realloc(void *old, size_t size);
void free(void *pointer);
int posix_memalign(void **pointer, size_t alignment, size_t size);
void *memalign(size_t alignment, size_t size);
size_t malloc_usable_size(void *pointer);
int pthread_create(thread_id *thread, const void *attributes, void *(*start)(void *), void *argument);
int pthread_join(thread_id thread, void **result);
long write(int file, const void *bytes, size_t n);
char *getenv(const char *name);
int snprintf(char *text, size_t room, const char *format, ...);

#define THREADS 4
#define ROUNDS 23
#define NOINLINE __attribute__((noinline))

static size_t held_bytes, held_blocks, allocated_bytes, allocated_blocks;
static void *volatile kept[4096];
static unsigned n_kept;

static void count(size_t *of_bytes, size_t *of_blocks, size_t bytes)
{
	__atomic_fetch_add(of_bytes, bytes, __ATOMIC_RELAXED);
	__atomic_fetch_add(of_blocks, 1, __ATOMIC_RELAXED);
}

static void *note(void *pointer, size_t bytes)
{
	count(&allocated_bytes, &allocated_blocks, bytes);
	return pointer;
}

static void *keep(void *pointer, size_t bytes)
{
	kept[__atomic_fetch_add(&n_kept, 1, __ATOMIC_RELAXED)] = pointer;
	count(&held_bytes, &held_blocks, bytes);
	return pointer;
}

NOINLINE static void *leaf(size_t bytes)
{
	void *pointer = keep(note(malloc(bytes), bytes), bytes);

	*(volatile char *)pointer = 1; /* so that the call is not the last thing done */
	return pointer;
}

NOINLINE static void *middle(size_t bytes)
{
	char *pointer = leaf(bytes + 2);

	*(volatile char *)(pointer + 1) = 2;
	return pointer;
}

NOINLINE static void outer(size_t bytes)
{
	char *pointer = middle(bytes + 4);

	*(volatile char *)(pointer + 2) = 3;
}

NOINLINE static int families(void)
{
	char *grown = note(malloc(13), 13);
	void *aligned = (void *)0;

	keep(note(calloc(7, 19), 133), 133);
	keep(note(realloc(grown, 70001), 70001), 70001);
	if (posix_memalign(&aligned, 64, 211))
		return 1;
	keep(note(aligned, 211), 211);
	keep(note(memalign(128, 223), 223), 223);
	free(note(malloc(1009), 1009));
	return (unsigned long)aligned % 64 || malloc_usable_size(aligned) < 211;
}

NOINLINE static void *worker(void *unused)
{
	void *blocks[16] = { 0 };

	for (unsigned i = 0; i < 4000; i++) {
		free(blocks[i * 7 % 16]);
		blocks[i * 7 % 16] = note(malloc(1 + i % 509), 1 + i % 509);
	}
	for (unsigned i = 0; i < 16; i++)
		free(blocks[i]);
	outer(997 - 6);
	return unused;
}

static int say(void)
{
	char text[160];
	int length = snprintf(text, sizeof(text), "holds %lu in %lu of %lu in %lu; preloaded %d\n",
			      (unsigned long)held_bytes, (unsigned long)held_blocks, (unsigned long)allocated_bytes,
			      (unsigned long)allocated_blocks, getenv("LD_PRELOAD") || getenv("MEMLEAK_SESSION"));

	return write(1, text, (size_t)length) != length;
}

int main(void)
{
	thread_id threads[THREADS];

	for (unsigned i = 0; i < ROUNDS; i++)
		outer(101 - 6);
	if (families())
		return 2;
	for (unsigned i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], (void *)0, worker, (void *)0))
			return 3;
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], (void *)0);
	return say();
}

#include "start.h"

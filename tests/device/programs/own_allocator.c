// SPDX-License-Identifier: Apache-2.0
/*
 * The malloc family for programs that bring their own: slots of two sizes, taken and given back without a lock, so that a
 * signal handler may call it at any moment; other blocks are mappings (-DPOOLS=0: all). Compiled into the program with hidden
 * visibility no dynamic symbol leads to it. calloc() and realloc() use the others.
 */
#include "../../support/programs/libc.h"

#ifdef OWN_malloc /* slow_entries: others are called first */
#define malloc own_malloc
#define free own_free
#endif
#ifndef POOLS
#define POOLS 2
#endif
#define SMALL 32768
#define LARGE 4096
#define HEAD 64 /* of a mapping: its size */

static char small[SMALL][64] __attribute__((aligned(64))), large[LARGE][8192] __attribute__((aligned(64)));
static char small_taken[SMALL], large_taken[LARGE];

static struct pool {
	char *slots, *is_taken;
	size_t slot_bytes;
	unsigned count, next;
} pools[] = { { small[0], small_taken, 64, SMALL, 0 }, { large[0], large_taken, 8192, LARGE, 0 } };

static struct pool *pool_of(void *block)
{
	for (struct pool *pool = pools; pool < pools + POOLS; pool++)
		if ((size_t)((char *)block - pool->slots) < pool->slot_bytes * pool->count)
			return pool;
	return NULL;
}

static size_t *head_of(void *block)
{
	return (size_t *)((char *)block - HEAD);
}

void *malloc(size_t size)
{
	size_t *head;

	for (struct pool *pool = pools; pool < pools + POOLS; pool++)
		for (unsigned tries = 0; size <= pool->slot_bytes && tries < pool->count; tries++) {
			unsigned slot = __atomic_fetch_add(&pool->next, 1, __ATOMIC_RELAXED) % pool->count;

			if (!__atomic_exchange_n(&pool->is_taken[slot], 1, __ATOMIC_ACQUIRE))
				return pool->slots + slot * pool->slot_bytes;
		}
	head = mmap(NULL, size + HEAD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (head == MAP_FAILED)
		return NULL;
	*head = size + HEAD;
	return (char *)head + HEAD;
}

void free(void *block)
{
	struct pool *pool;

	if (!block)
		return;
	pool = pool_of(block);
	if (pool)
		__atomic_store_n(&pool->is_taken[((char *)block - pool->slots) / pool->slot_bytes], 0, __ATOMIC_RELEASE);
	else
		munmap(head_of(block), *head_of(block));
}

void *calloc(size_t n, size_t size)
{
	size_t bytes;
	void *block = __builtin_mul_overflow(n, size, &bytes) ? NULL : malloc(bytes);

	return block ? memset(block, 0, bytes) : NULL;
}

void *realloc(void *old, size_t size)
{
	void *block = malloc(size);

	if (old && block) {
		size_t bytes = pool_of(old) ? pool_of(old)->slot_bytes : *head_of(old) - HEAD;

		memcpy(block, old, bytes < size ? bytes : size);
		free(old);
	}
	return block;
}

/* Blocks are aligned to 16; more is not needed here. */
void *aligned_alloc(size_t alignment, size_t size)
{
	return alignment > 16 ? NULL : malloc(size);
}

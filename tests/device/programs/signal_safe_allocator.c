// SPDX-License-Identifier: Apache-2.0
/* An allocator that a signal handler may call at any moment: slots of one size, taken and given back without a lock. */
#include <stddef.h>
#include <string.h>

#define SLOTS 8192
#define SLOT_BYTES 1024

static char slots[SLOTS][SLOT_BYTES] __attribute__((aligned(16)));
static int is_taken[SLOTS];
static unsigned next;
static char large[16u << 20] __attribute__((aligned(16))); /* never given back */
static size_t large_used;

void *malloc(size_t size)
{
	size_t bytes = (size + 15) & ~(size_t)15;

	if (size > SLOT_BYTES)
		return large + __atomic_fetch_add(&large_used, bytes, __ATOMIC_RELAXED);
	for (;;) {
		unsigned slot = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % SLOTS;

		if (!__atomic_exchange_n(&is_taken[slot], 1, __ATOMIC_ACQUIRE))
			return slots[slot];
	}
}

void free(void *pointer)
{
	size_t offset = (size_t)((char *)pointer - slots[0]);

	if (offset < sizeof(slots))
		__atomic_store_n(&is_taken[offset / SLOT_BYTES], 0, __ATOMIC_RELEASE);
}

void *calloc(size_t n, size_t size)
{
	void *block = malloc(n * size);

	return memset(block, 0, n * size);
}

void *realloc(void *old, size_t size)
{
	void *block = malloc(size);

	if (old) {
		memcpy(block, old, size < SLOT_BYTES ? size : SLOT_BYTES);
		free(old);
	}
	return block;
}

// SPDX-License-Identifier: Apache-2.0
#include "preload_seen.h"

#include <stddef.h>
#include <sys/mman.h>

#define STACKS (1u << 18)
#define EPOCHS (1u << 16)
#define PHI 0x9e3779b97f4a7c15ull

/* Not by calloc(): musl's writes to every page. */
static void *zero_pages(size_t bytes)
{
	void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return pages == MAP_FAILED ? NULL : pages;
}

int ml_preload_seen_create(struct ml_preload_seen *seen)
{
	seen->stacks = zero_pages(STACKS * sizeof(*seen->stacks));
	seen->epochs = zero_pages(EPOCHS * sizeof(*seen->epochs));
	return seen->stacks && seen->epochs ? 0 : -1;
}

void ml_preload_seen_destroy(struct ml_preload_seen *seen)
{
	if (seen->stacks)
		munmap(seen->stacks, STACKS * sizeof(*seen->stacks));
	if (seen->epochs)
		munmap(seen->epochs, EPOCHS * sizeof(*seen->epochs));
}

static ml_u64 mix(ml_u64 hash, ml_u64 value)
{
	hash = (hash ^ value) * PHI;
	return hash ^ hash >> 29;
}

bool ml_preload_seen_test(struct ml_preload_seen *seen, ml_u64 key, ml_u64 stack_hash)
{
	ml_u64 hash = mix(mix(key, seen->epochs[key % EPOCHS]), stack_hash);
	ml_u64 *place = &seen->stacks[hash % STACKS];

	if (*place == hash)
		return true;
	*place = hash;
	return false;
}

void ml_preload_seen_forget(struct ml_preload_seen *seen, ml_u64 key)
{
	seen->epochs[key % EPOCHS]++;
}

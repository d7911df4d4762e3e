// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/seen.h"

#include <sys/mman.h>

#define FIRST_STACKS (1u << 12)
#define STACKS_MAX (1u << 18)
#define EPOCHS (1u << 16)
#define PHI 0x9e3779b97f4a7c15ull

/* Not calloc(): musl's writes to every page. flags: MAP_POPULATE if all pages will be used. */
static void *zero_pages(size_t bytes, int flags)
{
	void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	return pages == MAP_FAILED ? NULL : pages;
}

int ml_preload_seen_create(struct ml_preload_seen *seen)
{
	seen->n_slots = FIRST_STACKS;
	seen->stacks = zero_pages(FIRST_STACKS * sizeof(*seen->stacks), MAP_POPULATE);
	seen->epochs = zero_pages(EPOCHS * sizeof(*seen->epochs), 0);
	return seen->stacks && seen->epochs ? 0 : -1;
}

void ml_preload_seen_destroy(struct ml_preload_seen *seen)
{
	if (seen->stacks)
		munmap(seen->stacks, seen->n_slots * sizeof(*seen->stacks));
	if (seen->epochs)
		munmap(seen->epochs, EPOCHS * sizeof(*seen->epochs));
}

/* Most sessions see some thousand stacks: a table for all that there may be would be a page for each of them. */
static void extend(struct ml_preload_seen *seen)
{
	ml_u32 n_slots = 4 * seen->n_slots;
	ml_u64 *stacks = n_slots <= STACKS_MAX ? zero_pages(n_slots * sizeof(*stacks), MAP_POPULATE) : NULL;

	if (!stacks)
		return;
	for (ml_u32 i = 0; i < seen->n_slots; i++)
		if (seen->stacks[i])
			stacks[seen->stacks[i] % n_slots] = seen->stacks[i];
	munmap(seen->stacks, seen->n_slots * sizeof(*stacks));
	seen->stacks = stacks;
	seen->n_slots = n_slots;
}

static ml_u64 mix(ml_u64 hash, ml_u64 value)
{
	hash = (hash ^ value) * PHI;
	return hash ^ hash >> 29;
}

bool ml_preload_seen_test(struct ml_preload_seen *seen, ml_u64 key, ml_u64 stack_hash)
{
	ml_u64 hash = mix(mix(key, seen->epochs[key % EPOCHS]), stack_hash);
	ml_u64 *slot = &seen->stacks[hash % seen->n_slots];

	if (*slot == hash)
		return true;
	seen->n_used += !*slot;
	*slot = hash;
	if (seen->n_used > seen->n_slots / 2 && seen->n_slots < STACKS_MAX)
		extend(seen);
	return false;
}

void ml_preload_seen_forget(struct ml_preload_seen *seen, ml_u64 key)
{
	seen->epochs[key % EPOCHS]++;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads are the first to hash a slice of stack, at the same moment. The hashes must be equal. */
#include "../../../support/programs/libc.h"

#include "preload/stacks/frame_chain.h"
#include "preload/stacks/stack_key.h"

#define PAGE 0x1000u /* of the only code */
#define WORDS 16

static struct ml_code_map map = { .n_clusters = 1, .clusters = { { .first_page = PAGE, .n_pages = 64 } }, .bits = { ~0ull } };
static ml_u64 slice[WORDS];
static pthread_barrier_t begin;

/* Not called: a slice is hashed without a walk. */
int ml_frame_walk(const struct ml_view *view, const struct ml_code_map *of, const struct ml_caller *caller, struct ml_walk *walk,
		  const struct ml_notes *notes)
{
	(void)view, (void)of, (void)caller, (void)walk, (void)notes;
	abort();
}

ml_u64 ml_chain_key(const struct ml_code_map *of, const struct ml_caller *caller, struct ml_memo *memo)
{
	(void)of, (void)caller, (void)memo;
	abort();
}

static void *hash(void *to)
{
	pthread_barrier_wait(&begin);
	*(ml_u64 *)to = ml_stack_hash(&map, slice, sizeof(slice));
	return NULL;
}

int main(void)
{
	ml_u64 one, other;
	pthread_t thread;

	for (int i = 0; i < WORDS; i++)
		slice[i] = ((ml_u64)PAGE << ML_CODE_PAGE_SHIFT) + 16u * (unsigned)i;
	pthread_barrier_init(&begin, NULL, 2);
	if (pthread_create(&thread, NULL, hash, &one))
		return 2;
	hash(&other);
	pthread_join(thread, NULL);
	return one != other;
}

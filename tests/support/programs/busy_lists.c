// SPDX-License-Identifier: Apache-2.0
/* Four threads that allocate, link, move and free all the time and lose nothing, and seven blocks that were lost before. */
#include "libc.h"

enum { SLOTS = 1000 };

struct node {
	struct node *next;
	char *name;
};

static struct node *slots[4][SLOTS];
static void *kept[4][SLOTS / 4];

__attribute__((noinline)) static void lose(void)
{
	for (int i = 0; i < 7; i++)
		*(char *volatile *)malloc(1009) = 0;
}

static void drop(struct node *node)
{
	while (node) {
		struct node *next = node->next;

		free(node->name);
		free(node);
		node = next;
	}
}

static void *work(void *argument)
{
	struct node **mine = slots[(intptr_t)argument];
	char **volatile grown = 0;
	uint32_t random = 1, n_grown = 0;

	for (;;) {
		struct node *node = malloc(sizeof(*node)), **slot;

		random = random * 1664525 + 1013904223;
		slot = &mine[(random >> 8) % SLOTS];
		node->name = malloc(20 + (random >> 20) % 200);
		node->next = *slot;
		*slot = node;
		if (!((random >> 16) % 5)) {
			drop(*slot);
			*slot = 0;
		}
		for (int i = 0; i < 4; i++) { /* what is kept is moved all the time */
			void **one = &kept[(intptr_t)argument][(random >> i) % 250], **other = &kept[(intptr_t)argument][i];
			void *moved = *one;

			*one = *other;
			*other = moved;
		}
		grown = realloc(grown, (n_grown + 1) * sizeof(*grown));
		grown[n_grown++] = malloc(40);
		if (n_grown == 500)
			while (n_grown)
				free(grown[--n_grown]);
	}
	return 0;
}

int main(void)
{
	pthread_t ids[4];

	close(1), close(2);
	lose();
	for (int i = 0; i < SLOTS; i++)
		kept[i / 250][i % 250] = malloc(307);
	for (intptr_t i = 0; i < 4; i++)
		pthread_create(&ids[i], 0, work, (void *)i);
	return pthread_join(ids[0], 0);
}

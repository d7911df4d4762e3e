// SPDX-License-Identifier: Apache-2.0
/*
 * Blocks of every kind of reachability, each of a size (a prime) that names its case; then it sleeps for argv[1] seconds.
 * Unreferenced blocks are allocated by a function whose frame is wiped afterwards. Compile without optimisation.
 */
#include "libc.h"
#include <semaphore.h>

#include "wipe.h"

struct node {
	void *next, *other;
};

static void *global_head, *global_inside, *global_list;
static __thread void *in_tls;
static sem_t is_ready;

static struct node *make(size_t size)
{
	return calloc(1, size);
}

__attribute__((noinline)) static void lose(void)
{
	struct node *head, *a, *b, *c;

	make(101); /* definitely: a single block */
	head = make(211); /* definitely: a list's lost head; its rest indirectly */
	head->next = a = make(223);
	a->next = make(227);
	a = make(307); /* a cycle: one definitely, one indirectly */
	b = make(307);
	a->next = b;
	b->next = a;
	a = make(401); /* a lost block that leads to a cycle: the cycle indirectly */
	b = make(409);
	c = make(409);
	a->next = b;
	b->next = c;
	c->next = b;
	a = make(503); /* refers to itself: definitely */
	a->next = a;
	a = make(601); /* possibly: only its inside is referred to; and what it leads to */
	a->next = make(607);
	global_inside = (char *)a + 40;
	global_head = a = make(701); /* reachable, through another */
	a->next = make(709);
	a->other = (char *)make(719) + 32; /* possibly: a reachable block refers to its inside */
	global_list = 0;
	for (int i = 0; i < 1000; i++) {
		a = make(809); /* reachable: a long list */
		a->next = global_list;
		global_list = a;
	}
	in_tls = make(907); /* reachable: thread-local storage of the first thread */
	a = make(1009); /* indirectly: a lost block refers to its inside */
	b = make(1013);
	b->next = (char *)a + 16;
	a = make(1103); /* a freed block refers to it still: definitely */
	b = make(1109);
	b->other = a;
	((struct node *)b)[2].next = a;
	free(b);
}

static void *thread(void *unused)
{
	void *volatile on_stack = make(1201); /* reachable: a thread's stack */
	static __thread void *volatile own;

	own = make(1213); /* reachable: a thread's own variable */
	sem_post(&is_ready);
	pause();
	return on_stack ? unused : own;
}

int main(int argc, char **argv)
{
	pthread_t id;
	void *volatile on_stack = make(1301); /* reachable: the first thread's stack */

	lose();
	wipe();
	sem_init(&is_ready, 0, 0);
	pthread_create(&id, 0, thread, 0);
	sem_wait(&is_ready);
	wipe();
	close(1), close(2);
	sleep(argc > 1 ? atoi(argv[1]) : 0);
	_exit(on_stack && global_head && in_tls ? 0 : 1);
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Classic cases of memory held over time, each by a function of its own: what valgrind, heaptrack and their users know as
 * leaks, and what only looks like one. A round each 25 ms for argv[1] milliseconds; with a second argument
 * argv[1] rounds without pauses. To be compiled without optimisation. tests/sessions/leaks/test_classic_cases.py says what is to be
 * found of each.
 */
#include "../../support/programs/libc.h"

#define CASE __attribute__((noinline)) static

enum { CACHE = 100, RING = 12, ROUND_OF_BURST = 120, POOL = 1000 };

struct node {
	struct node *next, *other;
	char text[80];
};

struct object {
	char *name;
	int number;
};

static struct node *sessions, *inside, *settings[23], *burst_kept[101];
static void *cache[CACHE], *ring[RING], *pool[POOL], *page;
static char *log_text, *message;
static size_t log_bytes;

static void wipe(void)
{
	volatile char stack[16384];

	memset((char *)stack, 0, sizeof(stack));
}

/* No stale pointer of the allocator or an earlier owner stays in a block: a scan cannot distinguish it from a live one. */
static void *filled(size_t size)
{
	return memset(malloc(size), 1, size);
}

/* ---- lost --------------------------------------------------------------------------------------------- */

CASE void leak_per_request(void)
{
	filled(1009);
}

CASE void leak_on_error_path(int round)
{
	char *buffer = filled(5003);

	if (round % 7 == 0)
		return; /* the error */
	free(buffer);
}

CASE void cycle_of_blocks(void)
{
	struct node *parent = calloc(1, sizeof(*parent)), *child = calloc(1, sizeof(*child));

	parent->next = child;
	child->other = parent;
}

CASE void lost_head_of_list(int round)
{
	struct node *head = NULL;

	for (int i = 0; round % 5 == 0 && i < 9; i++) {
		struct node *node = calloc(1, sizeof(*node));

		node->next = head;
		head = node;
	}
}

CASE void member_never_freed(void)
{
	struct object *object = filled(sizeof(*object));

	object->name = filled(307);
	free(object);
}

CASE void text_overwritten(void)
{
	message = strdup("a message that replaces the last one, which stays allocated: the commonest leak in C programs");
}

/* ---- referred to, and growing all the same ------------------------------------------------------------ */

CASE void cache_without_bound(void)
{
	struct node *node = calloc(1, sizeof(*node));

	node->next = sessions;
	sessions = node;
}

CASE void realloc_growth(void)
{
	log_text = realloc(log_text, log_bytes + 509);
	memset(log_text + log_bytes, 1, 509);
	log_bytes += 509;
}

CASE void only_inside_referred_to(void)
{
	struct node *node = calloc(1, sizeof(*node));

	node->other = inside;
	inside = (struct node *)(void *)&node->other;
}

static void *end_at_once(void *unused)
{
	return unused;
}

CASE void thread_never_joined(int round)
{
	pthread_t thread;

	if (round % 10 == 0)
		pthread_create(&thread, NULL, end_at_once, NULL);
}

/* ---- no leaks ----------------------------------------------------------------------------------------- */

CASE void cache_with_bound(int round)
{
	free(cache[round % CACHE]);
	cache[round % CACHE] = filled(4001);
}

CASE void ring_in_use(int round)
{
	free(ring[round % RING]);
	ring[round % RING] = filled(2003);
}

CASE void init_once(void)
{
	for (int i = 0; i < 23; i++)
		settings[i] = calloc(1, 3001);
}

CASE void burst(void)
{
	for (int i = 0; i < 101; i++)
		burst_kept[i] = calloc(1, 997);
}

CASE void pool_that_comes_and_goes(int round)
{
	for (int i = 0; i < (round ? 8 : POOL); i++) {
		int slot = round ? (round * 8 + i) % POOL : i;

		free(pool[slot]);
		pool[slot] = filled(211);
	}
}

CASE void request_and_reply(void)
{
	void *volatile request = filled(7001);

	free(request);
}

CASE void one_page_replaced(void)
{
	free(page);
	page = filled(9001);
}

static void run(int round)
{
	leak_per_request();
	leak_on_error_path(round);
	cycle_of_blocks();
	lost_head_of_list(round);
	member_never_freed();
	text_overwritten();
	cache_without_bound();
	realloc_growth();
	only_inside_referred_to();
	thread_never_joined(round);
	cache_with_bound(round);
	ring_in_use(round);
	pool_that_comes_and_goes(round);
	request_and_reply();
	one_page_replaced();
	if (!round)
		init_once();
	if (round == ROUND_OF_BURST)
		burst();
}

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
	int wanted = argc > 1 ? atoi(argv[1]) : 0, is_timed = argc < 3;
	long begin = now_ms();

	close(1), close(2); /* it outlives the measurement: readers of these need not wait */
	for (int round = 0; is_timed ? now_ms() - begin < wanted : round < wanted; round++) {
		run(round);
		wipe();
		if (is_timed)
			usleep(25000);
	}
	_exit(message && page ? 0 : 1);
}

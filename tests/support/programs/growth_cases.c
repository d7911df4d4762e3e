/* Classic cases of memory held over time, each by a function of its own; a round each 50 ms. */
#include <stdlib.h>
#include <unistd.h>

#define CASE __attribute__((noinline))

enum { CACHE = 97, ROUND_OF_INIT = 1, ROUND_OF_BURST = 61 };

void *volatile kept[1 << 20]; /* seen from outside: what is only written would be left out */
static unsigned n_kept;
static void *cache[CACHE];
static char *log_text;

static void keep(void *block)
{
	kept[n_kept++ % (1 << 20)] = block;
}

CASE static void leak_per_request(void)
{
	for (int i = 0; i < 7; i++)
		keep(malloc(1009));
}

CASE static void cache_without_bound(int round)
{
	if (round % 3 == 0)
		keep(malloc(2003));
}

CASE static void cache_with_bound(int round)
{
	free(cache[round % CACHE]);
	cache[round % CACHE] = malloc(4001);
}

CASE static void init_once(void)
{
	for (int i = 0; i < 23; i++)
		keep(malloc(3001));
}

CASE static void burst(void)
{
	for (int i = 0; i < 101; i++)
		keep(malloc(997));
}

CASE static void realloc_growth(int round)
{
	log_text = realloc(log_text, (size_t)round * 509 + 1);
}

CASE static void request_and_reply(void)
{
	void *request = malloc(5003), *reply = malloc(6007);
	usleep(20000);
	free(request);
	free(reply);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 200;
	for (int round = 0; round < rounds; round++) {
		if (round == ROUND_OF_INIT)
			init_once();
		if (round == ROUND_OF_BURST)
			burst();
		leak_per_request();
		cache_without_bound(round);
		cache_with_bound(round);
		realloc_growth(round);
		request_and_reply();
		usleep(30000);
	}
	return 0;
}

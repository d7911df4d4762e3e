/* Memory freed before the end: a spike of ten megabytes for a second, and a thousand short-lived blocks each 50 ms. */
#include <stdlib.h>
#include <unistd.h>

#define CASE __attribute__((noinline))

enum { BLOCKS = 1000, ROUNDS = 60, SPIKE_BEGINS = 20, SPIKE_ENDS = 40 };

void *volatile kept[2 * BLOCKS]; /* seen from outside: what is only written would be left out */

CASE static void base(void)
{
	for (int i = 0; i < 101; i++)
		kept[BLOCKS + i] = malloc(5003);
}

CASE static void spike(void)
{
	for (int i = 0; i < BLOCKS; i++)
		kept[i] = malloc(10007);
}

CASE static void end_of_spike(void)
{
	for (int i = 0; i < BLOCKS; i++)
		free(kept[i]);
}

CASE static void temporary(void)
{
	void *volatile block = malloc(613);

	free(block);
}

int main(void)
{
	base();
	for (int round = 0; round < ROUNDS; round++) {
		if (round == SPIKE_BEGINS)
			spike();
		if (round == SPIKE_ENDS)
			end_of_spike();
		for (int i = 0; i < BLOCKS; i++)
			temporary();
		usleep(50000);
	}
	return 0;
}

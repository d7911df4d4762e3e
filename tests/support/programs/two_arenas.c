/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads, each with an arena of its own: the reservation of 128 MiB is no block. */
#include <pthread.h>
#include <stdlib.h>

void *volatile kept[2];
static pthread_barrier_t both_live;

__attribute__((noinline)) static void leak_in_arena(long i)
{
	kept[i] = malloc(64);
}

static void *thread(void *number)
{
	pthread_barrier_wait(&both_live);
	leak_in_arena((long)number);
	pthread_barrier_wait(&both_live);
	return NULL;
}

int main(void)
{
	pthread_t threads[2];

	pthread_barrier_init(&both_live, NULL, 2);
	for (long i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, thread, (void *)i);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

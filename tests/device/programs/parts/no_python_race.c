/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two threads take the first look at a process without Python at the same moment, ROUNDS times. Python's functions are undefined there:
 * a call of one ends the program.
 *
 *   no_python_race ROUNDS
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "preload/stacks/python_frames.h"

static const struct ml_view view;
static const struct ml_caller caller;
static int rounds, n_wrong;
static pthread_barrier_t begin, end;

static void *look(void *is_first)
{
	for (int i = 0; i < rounds; i++) {
		if (is_first)
			__atomic_store_n(&ml_python_state, ML_PYTHON_UNTRIED, __ATOMIC_RELEASE);
		pthread_barrier_wait(&begin);
		if (ml_python_hash(&view, &caller))
			__atomic_fetch_add(&n_wrong, 1, __ATOMIC_RELAXED);
		pthread_barrier_wait(&end);
	}
	return NULL;
}

ml_u64 ml_python_code_number(const struct ml_view *of, struct ml_thread *thread, const struct ml_python_layout *layout, ml_u64 code)
{
	(void)of, (void)thread, (void)layout, (void)code;
	abort(); /* there are no frames */
}

int main(int argc, char **argv)
{
	pthread_t other;

	rounds = argc > 1 ? atoi(argv[1]) : 0;
	pthread_barrier_init(&begin, NULL, 2);
	pthread_barrier_init(&end, NULL, 2);
	if (pthread_create(&other, NULL, look, NULL))
		return 1;
	look(&other);
	pthread_join(other, NULL);
	printf("%d rounds, %d hashes\n", rounds, n_wrong);
	return n_wrong != 0;
}

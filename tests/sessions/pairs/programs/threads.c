/* Threads that end in every way: only keep_…() keep theirs, as pthread defines it. */
#include "../../../support/programs/libc.h"
#include <stdatomic.h>
#include <threads.h>

#define CASE __attribute__((noinline)) static void
#define OR_DIE(call)                                                                                              \
	do                                                                                                        \
		if (!(call))                                                                                      \
			abort();                                                                                  \
	while (0)

static void *ends(void *nothing)
{
	return nothing;
}

static int ends_too(void *nothing)
{
	(void)nothing;
	return 0;
}

static void *stays(void *nothing)
{
	pause();
	return nothing;
}

static atomic_int n_detaching; /* of those, how many are still to do so */

static void *detaches_itself(void *nothing)
{
	OR_DIE(!pthread_detach(pthread_self()));
	n_detaching--;
	return nothing;
}

static pthread_t begun(void *(*function)(void *))
{
	pthread_t thread;

	OR_DIE(!pthread_create(&thread, NULL, function, NULL));
	return thread;
}

static struct timespec in(time_t seconds)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	now.tv_sec += seconds;
	return now;
}

CASE created_detached(void)
{
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	OR_DIE(!pthread_create(&thread, &attributes, ends, NULL));
	pthread_attr_destroy(&attributes);
}

/* Most have done so before pthread_create() returns to its caller, above all where probes are in the way. */
CASE detached_by_itself(void)
{
	for (int i = 0; i < 50; i++) {
		n_detaching++;
		begun(detaches_itself);
	}
}

CASE joined_by_a_clock(void)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += 60;
	OR_DIE(!pthread_clockjoin_np(begun(ends), NULL, CLOCK_MONOTONIC, &until));
}

CASE joined_at_last(void)
{
	pthread_t thread = begun(ends);
	struct timespec until = in(60);

	while (pthread_tryjoin_np(thread, NULL) == EBUSY)
		usleep(100);
	OR_DIE(!pthread_timedjoin_np(begun(ends), NULL, &until));
}

CASE of_c11(void)
{
	thrd_t thread;

	OR_DIE(thrd_create(&thread, ends_too, NULL) == thrd_success && thrd_join(thread, NULL) == thrd_success);
	OR_DIE(thrd_create(&thread, ends_too, NULL) == thrd_success && thrd_detach(thread) == thrd_success);
}

CASE keep_c11(void)
{
	thrd_t thread;

	OR_DIE(thrd_create(&thread, ends_too, NULL) == thrd_success);
}

/* Asked for, but not joined. */
CASE keep_busy(void)
{
	pthread_t thread = begun(stays);
	struct timespec past = in(-1);

	OR_DIE(pthread_tryjoin_np(thread, NULL) == EBUSY);
	OR_DIE(pthread_timedjoin_np(thread, NULL, &past) == ETIMEDOUT);
}

CASE keep_joinable(void)
{
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_JOINABLE);
	OR_DIE(!pthread_create(&thread, &attributes, ends, NULL));
	pthread_attr_destroy(&attributes);
}

int main(void)
{
	for (int round = 0; round < 5; round++) {
		created_detached();
		detached_by_itself();
		joined_by_a_clock();
		joined_at_last();
		of_c11();
		keep_c11();
		keep_busy();
		keep_joinable();
	}
	while (n_detaching)
		usleep(1000);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "agent/protocol/host_watch.h"

#include <signal.h>
#include <sys/time.h>

/* Time to load programs on a slow device, before input is read. */
#define LOADING_S 600

static volatile sig_atomic_t is_silent;
static ml_u32 expected_s;

static void note_silence(int signal)
{
	(void)signal;
	is_silent = 1;
}

static void start_timer(ml_u32 first_s)
{
	/* the interval: one signal could come just before a write blocks */
	const struct itimerval timer = { .it_value = { .tv_sec = first_s }, .it_interval = { .tv_sec = 1 } };

	setitimer(ITIMER_REAL, &timer, NULL);
}

void ml_host_expect(ml_u32 silence_s)
{
	/* no SA_RESTART: blocked calls must return */
	const struct sigaction alarm = { .sa_handler = note_silence };

	expected_s = silence_s;
	if (!silence_s)
		return;
	sigaction(SIGALRM, &alarm, NULL);
	start_timer(LOADING_S + silence_s);
}

void ml_host_heard(void)
{
	if (expected_s && !is_silent)
		start_timer(expected_s);
}

bool ml_host_is_silent(void)
{
	return is_silent;
}

// SPDX-License-Identifier: Apache-2.0
#include "host_watch.h"

#include <signal.h>
#include <stddef.h>
#include <sys/time.h>

static volatile sig_atomic_t is_silent;
static ml_u32 expected_s;

static void note_silence(int signal)
{
	(void)signal;
	is_silent = 1;
}

void ml_host_expect(ml_u32 silence_s)
{
	/* no SA_RESTART: what is blocked has to look again */
	const struct sigaction alarm = { .sa_handler = note_silence };

	expected_s = silence_s;
	if (!silence_s)
		return;
	sigaction(SIGALRM, &alarm, NULL);
	ml_host_heard();
}

void ml_host_heard(void)
{
	/* the interval: one signal could come just before a write blocks */
	const struct itimerval timer = { .it_value = { .tv_sec = expected_s }, .it_interval = { .tv_sec = 1 } };

	if (expected_s && !is_silent)
		setitimer(ITIMER_REAL, &timer, NULL);
}

bool ml_host_is_silent(void)
{
	return is_silent;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits again and again, argv[2] ms each (200), by the system call that argv[1] names, or by each of them in a thread of its own: "all".
 * SIGTERM ends it: the exit code is the number of waits that ended with EINTR before. With argv[2] it writes of each wait whether it was
 * "in time" or "late".
 */
#include "../../support/programs/libc.h"
#include <linux/futex.h>
#include <sys/select.h>
#include <sys/sem.h>

#define LATE 1.3 /* times as long as was asked for */

static volatile sig_atomic_t is_over;
static int epoll, semaphores, listener, datagrams, word;
static int wait_ms = 200;
static struct timespec wait_time;

static void end(int signal)
{
	is_over = signal;
}

static long wait_by_nanosleep(void)
{
	return nanosleep(&wait_time, NULL);
}

static long wait_by_clock_nanosleep(void)
{
	errno = clock_nanosleep(CLOCK_MONOTONIC, 0, &wait_time, NULL);
	return errno ? -1 : 0;
}

static long wait_by_poll(void)
{
	return poll(NULL, 0, wait_ms);
}

static long wait_by_select(void)
{
	struct timeval time = { wait_ms / 1000, wait_ms % 1000 * 1000L };

	return select(0, NULL, NULL, NULL, &time);
}

static long wait_by_futex(void)
{
	return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &wait_time, NULL, 0);
}

static long wait_by_epoll(void)
{
	struct epoll_event event;

	return epoll_wait(epoll, &event, 1, wait_ms);
}

static long wait_by_semop(void)
{
	struct sembuf take = { 0, -1, 0 };

	return semtimedop(semaphores, &take, 1, &wait_time);
}

static long wait_by_sigtimedwait(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	return sigtimedwait(&set, NULL, &wait_time);
}

static long wait_by_epoll_pwait2(void)
{
	struct epoll_event event;

	return syscall(SYS_epoll_pwait2, epoll, &event, 1, &wait_time, NULL, 0);
}

static long wait_by_getevents(void)
{
	static unsigned long context;
	long event[4];

	if (!context && syscall(SYS_io_setup, 1, &context))
		_exit(102);
	return syscall(SYS_io_getevents, context, 1, 1, event, &wait_time);
}

/* For completions of which none comes (include/uapi/linux/io_uring.h). */
static long wait_by_uring(void)
{
	static int ring = -1;
	unsigned parameters[30] = { 0 };
	const struct {
		unsigned long long mask;
		unsigned mask_bytes, padding;
		const struct timespec *time;
	} argument = { .time = &wait_time };

	if (ring < 0)
		ring = (int)syscall(SYS_io_uring_setup, 1, parameters);
	return syscall(SYS_io_uring_enter, ring, 0, 1, 1 | 8, &argument, sizeof(argument));
}

static long wait_by_accept(void)
{
	return accept(listener, NULL, NULL);
}

static long wait_by_recv(void)
{
	char byte;

	return recv(datagrams, &byte, 1, 0);
}

static long wait_by_read(void)
{
	char byte;

	return read(datagrams, &byte, 1);
}

static double now_ms(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static const struct {
	const char *name;
	long (*wait)(void);
} waits[] = {
	{ "nanosleep", wait_by_nanosleep }, { "clock_nanosleep", wait_by_clock_nanosleep },
	{ "poll", wait_by_poll },	    { "select", wait_by_select },
	{ "futex", wait_by_futex },	    { "epoll", wait_by_epoll },
	{ "semop", wait_by_semop },	    { "accept", wait_by_accept },
	{ "sigtimedwait", wait_by_sigtimedwait }, { "epoll_pwait2", wait_by_epoll_pwait2 },
	{ "getevents", wait_by_getevents }, { "uring", wait_by_uring },
	{ "recv", wait_by_recv },	    { "read", wait_by_read },
};

static int with_time_limit(int type)
{
	struct sockaddr_un any = { .sun_family = AF_UNIX };
	struct timeval time = { wait_ms / 1000, wait_ms % 1000 * 1000L };
	int made = socket(AF_UNIX, type, 0);

	return bind(made, (struct sockaddr *)&any, sizeof(any.sun_family)) ||
			       setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)) ?
		       -1 :
		       made;
}

static const char *interval;
static int n_interrupted;

static void *wait_on(void *argument)
{
	long (*wait)(void) = (long (*)(void))argument;

	while (!is_over) {
		double begun_ms = now_ms();

		if (wait() < 0 && errno == EINTR && !is_over)
			__atomic_fetch_add(&n_interrupted, 1, __ATOMIC_RELAXED);
		free(malloc(100));
		if (interval) {
			puts(now_ms() - begun_ms < LATE * wait_ms ? "in time" : "late");
			fflush(stdout);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[sizeof(waits) / sizeof(waits[0])];
	int is_all = argc > 1 && !strcmp(argv[1], "all");
	void *wait = NULL;

	for (size_t i = 0; argc > 1 && i < sizeof(waits) / sizeof(waits[0]); i++)
		if (!strcmp(argv[1], waits[i].name))
			wait = (void *)waits[i].wait;
	interval = argc > 2 ? argv[2] : NULL;
	if (interval)
		wait_ms = atoi(interval);
	wait_time = (struct timespec){ wait_ms / 1000, wait_ms % 1000 * 1000000L };
	epoll = epoll_create1(0);
	semaphores = semget(IPC_PRIVATE, 1, 0600);
	listener = with_time_limit(SOCK_STREAM);
	datagrams = with_time_limit(SOCK_DGRAM);
	if ((!wait && !is_all) || epoll < 0 || semaphores < 0 || datagrams < 0 || listen(listener, 1))
		return 101;
	signal(SIGTERM, end);
	puts("ready");
	fflush(stdout);
	for (size_t i = 0; is_all && i < sizeof(waits) / sizeof(waits[0]); i++)
		if (pthread_create(&threads[i], NULL, wait_on, (void *)waits[i].wait))
			return 103;
	if (wait)
		wait_on(wait);
	for (size_t i = 0; is_all && i < sizeof(waits) / sizeof(waits[0]); i++)
		pthread_join(threads[i], NULL);
	semctl(semaphores, 0, IPC_RMID);
	return n_interrupted;
}

/* A program to be entered while it runs: each kind of thread looks whether anything of its own has changed, and says so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static atomic_int is_over, n_signals;
static int may_be_interrupted; /* waits: by a debugger's stop */

static void complain(const char *what)
{
	printf("harmed: %s\n", what);
	fflush(stdout);
	_exit(1);
}

/* Blocks filled with their own address come and go. */
static void *allocate(void *unused)
{
	size_t *blocks[64] = { 0 };
	unsigned random = (unsigned)(size_t)&blocks;

	(void)unused;
	while (!is_over) {
		int i = (int)((random = random * 1103515245 + 12345) >> 8) % 64;

		if (blocks[i] && blocks[i][0] != (size_t)blocks[i])
			complain("a block");
		free(blocks[i]);
		blocks[i] = malloc(sizeof(size_t) + (random >> 16) % 2000);
		blocks[i][0] = (size_t)blocks[i];
	}
	return NULL;
}

/* Vector registers that no call preserves, in a loop that makes none. */
static void *calculate(void *unused)
{
	(void)unused;
#ifdef __x86_64__
	while (!is_over) {
		unsigned long low = 0, loops = 1000000, flags;

		__asm__ volatile("movq %3, %%xmm0\n\tmovq %3, %%xmm15\n\tmov %3, %%r11\n\tstc\n"
				 "1:\tpause\n\tlea -1(%1), %1\n\tjrcxz 2f\n\tjmp 1b\n2:\tpushf\n\tpop %2\n\t"
				 "movq %%xmm0, %0\n\tmovq %%xmm15, %%rdx\n\tand %%rdx, %0\n\tand %%r11, %0"
				 : "=&r"(low), "+c"(loops), "=&r"(flags)
				 : "r"(0x5a5a5a5a12345678ul)
				 : "xmm0", "xmm15", "r11", "rdx", "cc", "memory");
		if (low != 0x5a5a5a5a12345678ul)
			complain("registers");
		if (!(flags & 1))
			complain("flags");
	}
#endif
	return NULL;
}

static void *sleep_whole(void *unused)
{
	(void)unused;
	while (!is_over) {
		struct timespec nap = { 0, 300000000 };

		if (nanosleep(&nap, NULL) && !is_over && !may_be_interrupted)
			complain("a sleep");
	}
	return NULL;
}

static void *wait_for_events(void *unused)
{
	int set = epoll_create1(0);
	struct epoll_event event;

	(void)unused;
	while (!is_over)
		if (epoll_wait(set, &event, 1, 200) && !is_over && !may_be_interrupted)
			complain("a wait for events");
	return NULL;
}

static void count_signal(int signal)
{
	(void)signal;
	n_signals++;
}

static void stay_in_handler(int signal)
{
	(void)signal;
	pause();
}

static void filter_calls(void)
{
	struct sock_filter allow = { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW };
	struct sock_fprog program = { 1, &allow };

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		exit(77);
}

/* Until the end only what strict mode allows is called. */
static void be_strict(void)
{
	char byte;

	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
		exit(77);
	write(1, "ready\n", 6);
	read(0, &byte, 1);
	write(1, "unharmed, 0 signals\n", 20);
	syscall(SYS_exit, 0);
}

/* The library's constructor does not return before its time, with the loader's lock held. */
static void *load_slowly(void *library)
{
	if (!dlopen(library, RTLD_NOW))
		exit(77);
	return NULL;
}

static void start(pthread_t *thread, void *(*function)(void *), void *argument)
{
	sigset_t all, old;

	sigfillset(&all); /* signals are for the first thread */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(thread, NULL, function, argument))
		exit(77);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* In vfork() for as long as the process lives: its child, which has our streams, ends with it. */
static void *wait_for_child(void *unused)
{
	if (!vfork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
		for (;;)
			syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
	}
	return unused;
}

static void run_threads(int n_busy)
{
	void *(*const kinds[])(void *) = { calculate, sleep_whole, wait_for_events };
	pthread_t threads[64];
	int n = 0;
	char byte;

	for (; n < n_busy && n < 60; n++)
		start(&threads[n], allocate, NULL);
	for (int i = 0; i < 3; i++)
		start(&threads[n++], kinds[i], NULL);
	puts("ready");
	fflush(stdout);
	while (read(0, &byte, 1) < 0 && errno == EINTR)
		;
	is_over = 1;
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	printf("unharmed, %d signals\n", n_signals);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "threads";
	struct sigaction action = { .sa_handler = strcmp(mode, "handler") ? count_signal : stay_in_handler,
				    .sa_flags = SA_RESTART };

	may_be_interrupted = argc > 3;
	sigaction(SIGUSR1, &action, NULL);
	if (!strcmp(mode, "filter"))
		filter_calls();
	if (!strcmp(mode, "strict"))
		be_strict();
	if (!strcmp(mode, "undumpable"))
		prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	if (!strcmp(mode, "half")) {
		pthread_t loader;

		start(&loader, load_slowly, argv[2]);
		while (access(argv[3], F_OK)) /* made by the constructor */
			usleep(1000);
		argc = 2;
	}
	if (!strcmp(mode, "vfork") && !vfork()) {
		dprintf(1, "ready %d\n", getpid());
		syscall(SYS_read, 0, &action, 1);
		_exit(0);
	}
	if (!strcmp(mode, "vfork of a thread")) {
		pthread_t parent;

		start(&parent, wait_for_child, NULL);
		pthread_detach(parent);
	}
	if (!strcmp(mode, "handler")) {
		puts("ready");
		fflush(stdout);
		raise(SIGUSR1);
	}
	run_threads(argc > 2 ? atoi(argv[2]) : 0);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that few try, each a few lines: argv[1] names one. Each leaks BLOCKS blocks of BYTES bytes in all by keep(), prints
 * what it did, and ends in its own way. With argv[2] "waits" it first says that it is ready, and begins at the end of its
 * standard input.
 */
#include "libc.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <ucontext.h>

#define BYTES 1009
#define BLOCKS 24

extern char **environ;
static void *volatile kept;

/* `volatile` keeps the compiler from leaving the allocation out. */
__attribute__((noinline)) static void keep(int n)
{
	for (int i = 0; i < n; i++)
		kept = malloc(BYTES);
	for (int i = 0; i < 3; i++)
		free(malloc(2 * BYTES));
}

static void say(const char *what)
{
	if (write(1, what, strlen(what)) < 0 || write(1, "\n", 1) < 0)
		_exit(99);
}

static int fail(const char *what)
{
	say(what);
	return 90;
}

static void *keep_three(void *unused)
{
	keep(3);
	return unused;
}

static void *keep_none(void *unused)
{
	free(malloc(BYTES + 2));
	return unused;
}

static int run_threads(int n, size_t stack_bytes, void *(*run)(void *))
{
	pthread_t threads[512];
	pthread_attr_t attributes;

	pthread_attr_init(&attributes);
	if (stack_bytes && pthread_attr_setstacksize(&attributes, stack_bytes))
		return -1;
	for (int i = 0; i < n; i++)
		if (pthread_create(&threads[i], &attributes, run, NULL))
			return -1;
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	pthread_attr_destroy(&attributes);
	return 0;
}

static int plain(void)
{
	keep(BLOCKS);
	return 0;
}

#include "odd_limits.h" /* uses the above */
#include "odd_processes.h"

static int threads(void)
{
	return run_threads(8, 0, keep_three);
}

static int small_stacks(void)
{
	return run_threads(8, 65536, keep_three);
}

static int many_threads(void)
{
	for (int i = 0; i < 5; i++)
		if (run_threads(400, 65536, keep_none))
			return fail("pthread_create");
	return plain();
}

static void on_signal(int number)
{
	(void)number;
	keep(BLOCKS);
}

static int alternate_stack(void)
{
	stack_t stack = { .ss_sp = malloc(65536), .ss_size = 65536 };
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };

	if (sigaltstack(&stack, NULL) || sigaction(SIGUSR1, &action, NULL))
		return fail("sigaltstack");
	raise(SIGUSR1);
	return 0;
}

static ucontext_t own_context, coroutine;

static void run_coroutine(void)
{
	for (int i = 0; i < 8; i++) {
		keep(3);
		swapcontext(&coroutine, &own_context);
	}
}

static int coroutines(void)
{
	getcontext(&coroutine);
	coroutine.uc_stack.ss_sp = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	coroutine.uc_stack.ss_size = 65536;
	coroutine.uc_link = &own_context;
	makecontext(&coroutine, run_coroutine, 0);
	for (int i = 0; i < 8; i++)
		swapcontext(&own_context, &coroutine);
	return 0;
}

__attribute__((noinline)) static int recurse(int depth)
{
	volatile char room[64] = { (char)depth };

	if (!depth)
		return plain();
	return recurse(depth - 1) + room[1];
}

static int deep(void)
{
	return recurse(20000);
}

static int libraries(void)
{
	for (int i = 0; i < 8; i++) {
		void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);

		keep(3);
		if (library)
			dlclose(library);
	}
	return 0;
}

static jmp_buf before;

__attribute__((noinline)) static void jump(int n)
{
	keep(3);
	longjmp(before, n);
}

static int jumps(void)
{
	volatile int n = 0;

	if (setjmp(before) < 8)
		jump(++n);
	return 0;
}

static int aborts(void)
{
	struct rlimit limit = { 0, 0 };

	setrlimit(RLIMIT_CORE, &limit);
	keep(BLOCKS);
	abort();
}

static int dumps_core(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_CORE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_CORE, &limit);
	keep(BLOCKS);
	abort();
}

static int is_killed(void)
{
	keep(BLOCKS);
	raise(SIGKILL);
	return 0;
}

static volatile int n_alarms;

static void on_alarm(int number)
{
	n_alarms += number == SIGALRM;
}

/* Signals every millisecond, of which no wait may learn. */
static int alarms(void)
{
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	struct itimerval timer = { { 0, 1000 }, { 0, 1000 } };

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
	for (int i = 0; i < 8; i++) {
		while (n_alarms < 5 * i)
			free(malloc(BYTES + 4));
		keep(3);
	}
	timer.it_value.tv_usec = timer.it_interval.tv_usec = 0;
	setitimer(ITIMER_REAL, &timer, NULL);
	return 0;
}

static void *cancelled(void *unused)
{
	keep(3);
	for (;;)
		usleep(1000);
	return unused;
}

static int cancels(void)
{
	pthread_t thread;
	void *result;

	for (int i = 0; i < 8; i++) {
		pthread_create(&thread, NULL, cancelled, NULL);
		usleep(20000);
		pthread_cancel(thread);
		pthread_join(thread, &result);
		if (result != PTHREAD_CANCELED)
			return fail("pthread_cancel");
	}
	return 0;
}

static void *leave(void *unused)
{
	usleep(20000);
	keep(BLOCKS);
	say("the last thread");
	exit(5);
	return unused;
}

static int first_thread_ends(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, leave, NULL);
	pthread_exit(NULL);
}

static int odd_name(void)
{
	prctl(PR_SET_NAME, "a) Z 1 (\n");
	return plain();
}

static int other_root(void)
{
	keep(12);
	if (!geteuid() && (chroot("/var/empty") && chroot("/tmp")))
		return fail("chroot");
	keep(12);
	return 0;
}

static int other_namespaces(void)
{
	keep(12);
	if (!geteuid() && unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC))
		return fail("unshare");
	keep(12);
	return 0;
}

static int environment(void)
{
	clearenv();
	setenv("LD_PRELOAD", "", 1);
	return plain();
}

static int blocked_signals(void)
{
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	return plain();
}

static const struct {
	const char *name;
	int (*run)(void);
} programs[] = {
	{ "plain", plain },
	{ "threads", threads },
	{ "small_stacks", small_stacks },
	{ "many_threads", many_threads },
	{ "alternate_stack", alternate_stack },
	{ "vforks", vforks },
	{ "spawns", spawns },
	{ "fork_storm", fork_storm },
	{ "forks_apart", forks_apart },
	{ "forks_of_threads", forks_of_threads },
	{ "shell", shell },
	{ "coroutines", coroutines },
	{ "deep", deep },
	{ "libraries", libraries },
	{ "jumps", jumps },
	{ "other_user", other_user },
	{ "undumpable", undumpable },
	{ "sandboxed", sandboxed },
	{ "refused", refused },
	{ "without_counter", without_counter },
	{ "forbids_some", forbids_some },
	{ "execs_sandboxed", execs_sandboxed },
	{ "small_room", small_room },
	{ "locks_all", locks_all },
	{ "no_descriptors", no_descriptors },
	{ "closes_all", closes_all },
	{ "closes_streams", closes_streams },
	{ "little_room", little_room },
	{ "locks_future", locks_future },
	{ "aborts", aborts },
	{ "dumps_core", dumps_core },
	{ "is_killed", is_killed },
	{ "alarms", alarms },
	{ "cancels", cancels },
	{ "first_thread_ends", first_thread_ends },
	{ "odd_name", odd_name },
	{ "other_root", other_root },
	{ "other_namespaces", other_namespaces },
	{ "raw_clone", raw_clone },
	{ "environment", environment },
	{ "no_children", no_children },
	{ "blocked_signals", blocked_signals },
	{ "execs", execs },
};

int main(int argc, char **argv)
{
	char byte;

	if (argc > 2 && !strcmp(argv[2], "waits")) {
		say("ready");
		while (read(0, &byte, 1) > 0)
			;
	}
	for (size_t i = 0; argc > 1 && i < sizeof(programs) / sizeof(programs[0]); i++)
		if (!strcmp(argv[1], programs[i].name)) {
			int code = programs[i].run();

			say("done");
			return code;
		}
	return 98;
}

/*
 * A program to be entered and measured while it runs. Each kind of thread looks whether anything of its own has changed,
 * and says so.
 *
 *   MODE N [interrupted]    N threads allocate; 0 and "load": no others. interrupted: a debugger's stop may end waits
 *   half N LIBRARY MARK     a thread loads the library, whose constructor waits while there is a file MARK
 *   namespace N LIBRARY     threads allocate by the libc of the library's linker namespace, too
 *   served N                memory right behind the stack of another thread comes from the process itself (userfaultfd(2))
 *
 * Orders are bytes of standard input: l leaks 23 blocks of 5003 bytes, s does so in seccomp's strict mode and ends, h enters a signal
 * handler and stays in it until o. In there m leaks another block, and f frees it. Anything else ends the program.
 */
#include "../../support/programs/libc.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <stdatomic.h>
#include <sys/ioctl.h>

static atomic_int is_over, n_signals;
static int may_be_interrupted;
static void *volatile kept;
static void *(*other_malloc)(size_t);
static void (*other_free)(void *);

static void complain(const char *what)
{
	printf("harmed: %s\n", what);
	fflush(stdout);
	_exit(1);
}

/* Leaves processor time to what attaches. */
static void pause_ns(long ns)
{
	nanosleep(&(struct timespec){ 0, ns }, NULL);
}

/* Blocks filled with their own address come and go. */
static void *allocate(void *unused)
{
	size_t *blocks[64] = { 0 };
	unsigned random = (unsigned)(size_t)&blocks;

	while (!is_over) {
		int i = (int)((random = random * 1103515245 + 12345) >> 8) % 64;

		if (blocks[i] && blocks[i][0] != (size_t)blocks[i])
			complain("a block");
		free(blocks[i]);
		blocks[i] = malloc(sizeof(size_t) + (random >> 16) % 2000);
		blocks[i][0] = (size_t)blocks[i];
		if (other_malloc)
			other_free(other_malloc(77));
		if (!i)
			pause_ns(20000);
	}
	for (int i = 0; i < 64; i++)
		free(blocks[i]);
	return unused;
}

/* Vector registers that no call preserves, in a loop that makes none. */
static void *calculate(void *unused)
{
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
		pause_ns(10000000);
	}
#endif
	return unused;
}

static void *sleep_whole(void *unused)
{
	while (!is_over) {
		struct timespec nap = { 0, 300000000 };

		if (nanosleep(&nap, NULL) && !is_over && !may_be_interrupted)
			complain("a sleep");
	}
	return unused;
}

static void *wait_for_events(void *unused)
{
	int set = epoll_create1(0);
	struct epoll_event event;

	while (!is_over)
		if (epoll_wait(set, &event, 1, 200) && !is_over && !may_be_interrupted)
			complain("a wait for events");
	return unused;
}

static void say(const char *line)
{
	if (write(1, line, strlen(line)) < 0)
		_exit(1);
}

static void count_signal(int signal)
{
	(void)signal;
	n_signals++;
}

static void stay(int signal)
{
	void *block = NULL;
	char order = 0;

	(void)signal;
	say("inside\n");
	while (order != 'o') {
		if (read(0, &order, 1) != 1)
			_exit(1);
		if (order == 'm') {
			block = kept = malloc(4999);
			say("leaked\n");
		} else if (order == 'f') {
			free(block);
			say("freed\n");
		}
	}
}

__attribute__((noinline)) static void leak_some(void)
{
	for (int i = 0; i < 23; i++)
		memset(kept = malloc(5003), i, 5003);
	say("leaked\n");
}

static void obey(void)
{
	char order = 0;

	while (read(0, &order, 1) == 1 || errno == EINTR) {
		if (order == 'l') {
			leak_some();
		} else if (order == 's') {
			if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
				exit(77);
			leak_some();
			syscall(SYS_exit, 0);
		} else if (order == 'h') {
			raise(SIGUSR2);
			say("outside\n");
		} else if (order) {
			return;
		}
		order = errno = 0;
	}
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
	say("ready\n");
	read(0, &byte, 1);
	say("unharmed, 0 signals\n");
	syscall(SYS_exit, 0);
}

/* The library's constructor does not return before its time, with the loader's lock held. */
static void *load_slowly(void *library)
{
	if (!dlopen(library, RTLD_NOW))
		exit(77);
	return NULL;
}

static void open_namespace(const char *path)
{
	void *library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);

	if (!library)
		exit(77);
	other_malloc = (void *(*)(size_t))dlsym(library, "malloc");
	other_free = (void (*)(void *))dlsym(library, "free");
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

static void serve_memory(void)
{
	size_t bytes = 1 << 20;
	char *stack = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register behind = { { (uintptr_t)stack + bytes, bytes }, UFFDIO_REGISTER_MODE_MISSING, 0 };
	int file = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setstack(&attributes, stack, bytes);
	if (file < 0 || ioctl(file, UFFDIO_API, &(struct uffdio_api){ .api = UFFD_API }) ||
	    ioctl(file, UFFDIO_REGISTER, &behind) || pthread_create(&thread, &attributes, sleep_whole, NULL))
		exit(77);
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

static void run_threads(int n_busy, int n_kinds)
{
	void *(*const kinds[])(void *) = { calculate, sleep_whole, wait_for_events };
	pthread_t threads[64];
	int n = 0;

	for (; n < n_busy && n < 60; n++)
		start(&threads[n], allocate, NULL);
	for (int i = 0; i < n_kinds; i++)
		start(&threads[n++], kinds[i], NULL);
	say("ready\n");
	obey();
	is_over = 1;
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	printf("unharmed, %d signals\n", n_signals);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "threads";
	struct sigaction action = { .sa_handler = count_signal, .sa_flags = SA_RESTART };
	pthread_t other;

	may_be_interrupted = argc > 3;
	free(malloc(120000)); /* room for what is leaked in strict mode */
	sigaction(SIGUSR1, &action, NULL);
	signal(SIGUSR2, stay);
	if (!strcmp(mode, "filter"))
		filter_calls();
	if (!strcmp(mode, "strict"))
		be_strict();
	if (!strcmp(mode, "undumpable"))
		prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	if (!strcmp(mode, "namespace"))
		open_namespace(argv[3]);
	if (!strcmp(mode, "served"))
		serve_memory();
	if (!strcmp(mode, "half")) {
		start(&other, load_slowly, argv[3]);
		while (access(argv[4], F_OK)) /* made by the constructor */
			usleep(1000);
	}
	if (!strcmp(mode, "vfork") && !vfork()) {
		dprintf(1, "ready %d\n", getpid());
		syscall(SYS_read, 0, &action, 1);
		_exit(0);
	}
	if (!strcmp(mode, "vfork of a thread")) {
		start(&other, wait_for_child, NULL);
		pthread_detach(other);
	}
	run_threads(argc > 2 ? atoi(argv[2]) : 0, strcmp(mode, "load") ? 3 : 0);
	return 0;
}

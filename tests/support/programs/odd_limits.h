/* SPDX-License-Identifier: Apache-2.0 */
/* Those of odd_programs.c that take something away from themselves: rights, descriptors, address space, system calls. */
#pragma once

static int other_user(void)
{
	keep(12);
	if (!geteuid() && (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)))
		return fail("setresuid");
	keep(12);
	return 0;
}

static int undumpable(void)
{
	keep(12);
	prctl(PR_SET_DUMPABLE, 0);
	keep(12);
	return 0;
}

static int forbid(struct sock_filter *filter, size_t bytes, int by_prctl)
{
	struct sock_fprog program = { (unsigned short)(bytes / sizeof(*filter)), filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return fail("no_new_privs");
	if (by_prctl ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) :
		       syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
		return fail("seccomp");
	return 0;
}

/* The verdict for every system call but those of malloc, output and exit. */
static int forbid_most(unsigned verdict)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 7, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_brk, 6, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 5, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_munmap, 4, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, verdict),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	keep(12);
	if (forbid(filter, sizeof(filter), 1))
		return 1;
	keep(12);
	return 0;
}

static int sandboxed(void)
{
	return forbid_most(SECCOMP_RET_KILL_PROCESS);
}

/* getpid() and gettid(), which never fail, fail. */
static int refused(void)
{
	return forbid_most(SECCOMP_RET_ERRNO | EPERM);
}

static void *keep_some(void *unused)
{
	keep(8);
	return unused;
}

/* Kills for what a debugger does, and for opening a file to write, as services forbid it; for all threads, as libseccomp installs it. */
static int forbids_some(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 5, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 4, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 2),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_WRONLY | O_RDWR, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	pthread_t thread;

	keep(8);
	if (forbid(filter, sizeof(filter), 0))
		return 1;
	if (pthread_create(&thread, NULL, keep_some, NULL) || pthread_join(thread, NULL))
		return fail("pthread_create");
	keep(8);
	return 0;
}

/* The kernel sends SIGSEGV for reading the cycle counter, as the vDSO's clock does; on other machines there is none to forbid. */
static int without_counter(void)
{
	keep(12);
	prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
	dlopen("libm.so.6", RTLD_NOW);
	keep(12);
	return 0;
}

static int execs_sandboxed(void)
{
	if (forbids_some())
		return 1;
	execl("/proc/self/exe", "odd_programs", "plain", NULL);
	return fail("execl");
}

static int no_descriptors(void)
{
	struct rlimit limit = { 3, 3 };

	setrlimit(RLIMIT_NOFILE, &limit);
	return open("/dev/null", O_RDONLY) < 0 ? plain() : fail("open");
}

static int closes_all(void)
{
	keep(12);
	syscall(SYS_close_range, 3, ~0u, 0);
	keep(12);
	return 0;
}

static int closes_streams(void)
{
	say("before");
	for (int i = 0; i < 3; i++)
		close(i);
	return plain();
}

static long own_pages(void)
{
	char text[64] = "";
	int file = open("/proc/self/statm", O_RDONLY);

	if (file < 0 || read(file, text, sizeof(text) - 1) <= 0)
		return -1;
	close(file);
	return atol(text);
}

/* Room for 64 MiB more than it has now. */
static int little_room(void)
{
	struct rlimit limit;

	keep(12);
	limit.rlim_cur = limit.rlim_max = (rlim_t)own_pages() * 4096 + (64 << 20);
	setrlimit(RLIMIT_AS, &limit);
	keep(12);
	for (int i = 0; i < 16; i++) {
		void *block = malloc(1 << 20);

		if (!block)
			return fail("malloc");
		free(block);
	}
	return 0;
}

/* Much less than the segment takes. */
static int small_room(void)
{
	struct rlimit limit = { 512 << 20, 512 << 20 }, found;

	keep(12);
	if (setrlimit(RLIMIT_AS, &limit) || getrlimit(RLIMIT_AS, &found) || found.rlim_cur != limit.rlim_cur)
		return fail("setrlimit");
	for (int megabytes = 64; megabytes <= 1024; megabytes *= 16) {
		void *block = malloc((size_t)megabytes << 20);

		if (!block == (megabytes == 64))
			return fail("malloc");
		free(block);
	}
	keep(12);
	return 0;
}

/* A line of /proc/self/status in kB. */
static long own_status(const char *name)
{
	char line[256];
	long found = -1;
	FILE *status = fopen("/proc/self/status", "r");

	while (status && found < 0 && fgets(line, sizeof(line), status))
		if (!strncmp(line, name, strlen(name)))
			found = atol(line + strlen(name));
	if (status)
		fclose(status);
	return found;
}

static int locks_all(void)
{
	keep(12);
	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		return fail("mlockall");
	keep(12);
	if (own_status("VmLck:") > 64 << 10 || own_status("VmLck:") < 1 << 10)
		return fail("another amount is locked");
	return 0;
}

static int locks_future(void)
{
	if (mlockall(MCL_FUTURE))
		return fail("mlockall");
	return plain();
}

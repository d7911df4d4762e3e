// SPDX-License-Identifier: Apache-2.0
/*
 * The shim's reading of seccomp filters beside the kernel's. For N filters made up from SEED: installs each in a child that
 * makes a system call, and prints the filters that kill a call of which the shim said that it is allowed. Where no filter
 * looks at arguments, the other way round too.
 *
 *   filters N SEED
 */
#include "../../../support/programs/libc.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#include "preload/freestanding/seccomp_filter.h"
#include "preload/freestanding/syscalls.h"

#define LENGTH_MAX 40
#define KILL BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static const int calls[] = { __NR_getpid, __NR_gettid, __NR_sched_yield, __NR_getppid, __NR_geteuid };
static unsigned state;

static unsigned below(unsigned n)
{
	state = state * 1103515245u + 12345u;
	return (state >> 16) % n;
}

static struct sock_filter load(int of_arguments)
{
	static const unsigned offsets[] = { offsetof(struct seccomp_data, nr), offsetof(struct seccomp_data, arch),
					    offsetof(struct seccomp_data, args[0]), offsetof(struct seccomp_data, args[5]),
					    offsetof(struct seccomp_data, instruction_pointer) };

	return (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsets[below(of_arguments ? 5 : 2)]);
}

static unsigned constant(void)
{
	return below(3) ? (unsigned)calls[below(5)] : below(2) ? AUDIT_ARCH_X86_64 : below(200);
}

/* Jumps stay within the `left` instructions that follow. */
static struct sock_filter jump(unsigned left)
{
	static const unsigned short kinds[] = { BPF_JEQ, BPF_JGT, BPF_JGE, BPF_JSET };

	if (!below(8))
		return (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, below(left));
	return (struct sock_filter)BPF_JUMP(BPF_JMP | kinds[below(4)] | BPF_K, constant(), (unsigned char)below(left),
					    (unsigned char)below(left));
}

static struct sock_filter instruction(unsigned left, int of_arguments)
{
	switch (below(12)) {
	case 0 ... 3:
		return load(of_arguments);
	case 4:
		return (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, below(2) ? ~0u : 0xff);
	case 5:
		return (struct sock_filter)BPF_STMT(BPF_MISC | BPF_TAX, 0);
	case 6:
		return below(2) ? (struct sock_filter)KILL : (struct sock_filter)ALLOW;
	default:
		return jump(left);
	}
}

static unsigned make(struct sock_filter *code, int of_arguments)
{
	unsigned n = 4 + below(LENGTH_MAX - 6);

	code[0] = load(0);
	for (unsigned i = 1; i < n; i++)
		code[i] = instruction(n - i, of_arguments);
	code[n] = (struct sock_filter)ALLOW;
	code[n + 1] = (struct sock_filter)KILL;
	return n + 2;
}

/* Whether a child that installed the filter comes back from the call; -1 if the kernel refused the filter. */
static int survives(struct sock_fprog *program, int number)
{
	volatile int *result = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int survived, pid = fork();

	if (!pid) {
		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
			_exit(1);
		*result = -1;
		if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program))
			_exit(1);
		*result = 0;
		ml_kernel_call(number, below(3), below(3), 0, 0, 0, below(3));
		*result = 1;
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	survived = *result;
	munmap((void *)result, 4096);
	return survived;
}

int main(int argc, char **argv)
{
	int n = argc > 2 ? atoi(argv[1]) : 0, n_allowed = 0, n_killed = 0;

	state = argc > 2 ? (unsigned)atoi(argv[2]) : 0;
	for (int i = 0; i < n; i++) {
		struct sock_filter code[LENGTH_MAX];
		int of_arguments = i % 2, number = calls[below(5)], kernel;
		struct sock_fprog program = { (unsigned short)make(code, of_arguments), code };
		int forbids;

		for (unsigned word = 0; word < ML_SYSTEM_CALLS / 32; word++)
			ml_sandbox.allowed[word] = ~0u;
		ml_sandbox.is_on = 0;
		ml_sandbox_expect_filter(&program);
		forbids = ml_sandbox_forbids(number);
		ml_sandbox.is_on = 0;
		kernel = survives(&program, number);
		if (kernel < 0)
			continue;
		n_allowed += kernel && !forbids;
		n_killed += !kernel && forbids;
		if ((!kernel && !forbids) || (!of_arguments && kernel && forbids))
			printf("filter %d of seed %s: call %d %s, the shim says %s\n", i, argv[2], number,
			       kernel ? "passes" : "is killed", forbids ? "forbidden" : "allowed");
	}
	printf("%d allowed, %d killed\n", n_allowed, n_killed);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * without_calls NUMBER[:ERROR[:ARGUMENT]]… -- COMMAND: runs the command where these system calls are answered as by kernels
 * that have none of them (ENOSYS) or with another error, of one those whose third argument is this, by a seccomp filter.
 * Android 8 and older run on Linux 3.10 and 3.18.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define CALLS_MAX 32

int main(int argc, char **argv)
{
	struct sock_filter code[5 * CALLS_MAX + 2];
	const struct sock_filter load = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	unsigned short n = 0;
	struct sock_fprog program = { 0, code };
	int i = 1;

	code[n++] = load;
	for (; i < argc && i <= CALLS_MAX && strcmp(argv[i], "--"); i++) {
		char *rest;
		unsigned call = strtoul(argv[i], &rest, 0), error = *rest ? strtoul(rest + 1, &rest, 0) : ENOSYS;
		unsigned offset = offsetof(struct seccomp_data, args[2]), argument = *rest ? strtoul(rest + 1, NULL, 0) : 0;

		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, *rest ? 4 : 1);
		if (*rest) {
			code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset);
			code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, argument, 0, 1);
		}
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error);
		if (*rest)
			code[n++] = load;
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	program.len = n;
	if (i + 1 >= argc || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return 100;
	execvp(argv[i + 1], argv + i + 1);
	return 101;
}

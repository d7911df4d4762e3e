// SPDX-License-Identifier: Apache-2.0
/*
 * without_calls NUMBER… -- COMMAND: runs the command where these system calls are answered as by kernels that have none
 * of them (ENOSYS), by a seccomp filter. Android 8 and older run on Linux 3.10 and 3.18.
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
	struct sock_filter code[2 * CALLS_MAX + 2];
	unsigned short n = 0;
	struct sock_fprog program = { 0, code };
	int i = 1;

	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (; i < argc && i <= CALLS_MAX && strcmp(argv[i], "--"); i++) {
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(argv[i]), 0, 1);
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	program.len = n;
	if (i + 1 >= argc || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return 100;
	execvp(argv[i + 1], argv + i + 1);
	return 101;
}

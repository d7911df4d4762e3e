/* Makes the kernel hold memory on its behalf: waits for a line, takes N of a kind, says so, and waits for another line. */
#define _GNU_SOURCE
#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PIPE_BYTES 65536 /* capacity of a pipe, pipe(7): 16 pages */
#define PERCPU_BYTES 4096
#define MESSAGE_BYTES 2000

static char filling[PIPE_BYTES];

__attribute__((noinline)) static int fill_pipe(void)
{
	int ends[2];

	return pipe(ends) || write(ends[1], filling, sizeof(filling)) != sizeof(filling);
}

__attribute__((noinline)) static int fill_socket(void)
{
	int ends[2];

	return socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) || write(ends[1], filling, MESSAGE_BYTES) != MESSAGE_BYTES;
}

__attribute__((noinline)) static int make_percpu_map(void)
{
	union bpf_attr map = { .map_type = BPF_MAP_TYPE_PERCPU_ARRAY, .key_size = 4, .value_size = PERCPU_BYTES, .max_entries = 1 };

	return syscall(__NR_bpf, BPF_MAP_CREATE, &map, sizeof(map)) < 0;
}

/* All is given back before the end. */
__attribute__((noinline)) static int pass_pipe(void)
{
	int ends[2];

	if (pipe(ends) || write(ends[1], filling, sizeof(filling)) != sizeof(filling))
		return 1;
	return close(ends[0]) | close(ends[1]);
}

__attribute__((noinline)) static int hold(int (*one)(void), int count)
{
	int failed = 0;

	for (int i = 0; i < count; i++)
		failed |= one();
	return failed;
}

int main(int argc, char **argv)
{
	struct rlimit files = { 65536, 65536 };
	int failed, count = argc > 2 ? atoi(argv[2]) : 0;
	char line[16];

	setrlimit(RLIMIT_NOFILE, &files);
	if (argc < 3 || !fgets(line, sizeof(line), stdin))
		return 2;
	failed = !strcmp(argv[1], "pipes")  ? hold(fill_pipe, count) :
		 !strcmp(argv[1], "sockets") ? hold(fill_socket, count) :
		 !strcmp(argv[1], "percpu") ? hold(make_percpu_map, count) :
					       hold(pass_pipe, count);
	puts(failed ? "failed" : "held");
	fflush(stdout);
	return fgets(line, sizeof(line), stdin) ? failed : 2;
}

/*
 * Makes the kernel hold memory on its behalf. KIND N: waits for a line, takes N of a kind, says so, and waits for another line.
 * outlive MESSAGES OPEN LEFT: see outlive().
 */
#include "../../../support/programs/libc.h"
#include <linux/bpf.h>
#include <sys/ipc.h>
#include <sys/msg.h>

#define PIPE_BYTES 65536 /* capacity of a pipe, pipe(7): 16 pages */
#define PERCPU_BYTES 4096
#define MESSAGE_BYTES 2000
#define QUEUE_MESSAGES 8 /* as many as a queue takes: kernel.msgmnb is 16384 by default */

static struct {
	long type;
	char text[PIPE_BYTES];
} filling = { .type = 1 };

__attribute__((noinline)) static int fill_pipe(void)
{
	int ends[2];

	return pipe(ends) || write(ends[1], filling.text, PIPE_BYTES) != PIPE_BYTES;
}

__attribute__((noinline)) static int fill_socket(void)
{
	int ends[2];

	return socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) || write(ends[1], filling.text, MESSAGE_BYTES) != MESSAGE_BYTES;
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

	if (pipe(ends) || write(ends[1], filling.text, PIPE_BYTES) != PIPE_BYTES)
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

__attribute__((noinline)) static int send_message(int queue)
{
	return msgsnd(queue, &filling, MESSAGE_BYTES, IPC_NOWAIT);
}

__attribute__((noinline)) static int leave_open(int count)
{
	return hold(fill_pipe, count) != 0;
}

__attribute__((noinline)) static int send_all(int count)
{
	int failed = 0, queue = -1;

	for (int i = 0; i < count; i++) {
		if (i % QUEUE_MESSAGES == 0) {
			queue = msgget(IPC_PRIVATE, 0600);
			printf("queue %d\n", queue);
		}
		failed |= queue < 0 || send_message(queue);
	}
	fflush(stdout);
	return failed;
}

static int run_daemon(int count, int ready)
{
	char failed = (char)leave_open(count), byte;

	if (write(ready, &failed, 1) != 1)
		return 1;
	close(1);
	close(2);
	while (read(0, &byte, 1) > 0)
		;
	return 0;
}

/*
 * What the kernel holds of a command once it has ended. MESSAGES in System V queues, half of them sent by a child, stay (their
 * queues' numbers are printed); OPEN filled pipes that stay open are freed at its end; LEFT more are a daemon's that it leaves
 * behind, whose pid is printed, and which waits for the end of standard input.
 */
static int outlive(char **argv)
{
	int messages, ready[2], status;
	char failed;
	pid_t child;

	if (pipe(ready))
		return 2;
	messages = atoi(argv[0]);
	if (!(child = fork()))
		return run_daemon(atoi(argv[2]), ready[1]);
	printf("daemon %d\n", (int)child);
	fflush(stdout);
	if (read(ready[0], &failed, 1) != 1 || failed)
		return 3;
	if (!(child = fork()))
		return send_all(messages / 2);
	if (waitpid(child, &status, 0) != child || status || send_all(messages - messages / 2))
		return 4;
	return leave_open(atoi(argv[1])) ? 5 : 0;
}

int main(int argc, char **argv)
{
	struct rlimit files = { 65536, 65536 };
	int failed, count = argc > 2 ? atoi(argv[2]) : 0;
	char line[16];

	setrlimit(RLIMIT_NOFILE, &files);
	if (argc > 4)
		return outlive(argv + 2);
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

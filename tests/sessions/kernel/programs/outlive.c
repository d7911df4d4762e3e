/*
 * outlive MESSAGES OPEN LEFT: what the kernel holds of a command once it has ended. MESSAGES in System V queues, half of them sent by
 * a child, stay (their queues' numbers are printed); OPEN filled pipes that stay open are freed at its end; LEFT more are a
 * daemon's that it leaves behind, whose pid is printed, and which waits for the end of standard input.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIPE_BYTES 65536 /* capacity of a pipe, pipe(7): 16 pages */
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

__attribute__((noinline)) static int send_message(int queue)
{
	return msgsnd(queue, &filling, MESSAGE_BYTES, IPC_NOWAIT);
}

__attribute__((noinline)) static int leave_open(int count)
{
	int failed = 0;

	for (int i = 0; i < count; i++)
		failed |= fill_pipe();
	return failed;
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

int main(int argc, char **argv)
{
	struct rlimit files;
	int messages, ready[2], status;
	char failed;
	pid_t child;

	if (argc < 4 || getrlimit(RLIMIT_NOFILE, &files) || pipe(ready))
		return 2;
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	messages = atoi(argv[1]);
	if (!(child = fork()))
		return run_daemon(atoi(argv[3]), ready[1]);
	printf("daemon %d\n", (int)child);
	fflush(stdout);
	if (read(ready[0], &failed, 1) != 1 || failed)
		return 3;
	if (!(child = fork()))
		return send_all(messages / 2);
	if (waitpid(child, &status, 0) != child || status || send_all(messages - messages / 2))
		return 4;
	return leave_open(atoi(argv[2])) ? 5 : 0;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * A stranger passes the last descriptor of a socket that lingers on close(2), with a queue that nobody reads: what drops the
 * message must not wait. Once it is received, once it is closed unread. The alarm ends a program that waits.
 */
#include "../../../support/programs/libc.h"
#include <netinet/in.h>

#include "agent/protocol/abstract_socket.h"

static char bytes[1 << 16];

static int lingering(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct linger linger = { 1, 30000 };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), sender = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &length) ||
	    connect(sender, (struct sockaddr *)&address, length) || accept(listener, NULL, NULL) < 0)
		perror("loopback"), exit(1);
	while (send(sender, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	setsockopt(sender, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	return sender;
}

/* In another process, which keeps the other end open and leaves the message's reference the last. */
static pid_t stranger(const char *name)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr head;
	} control = { .head = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
	struct iovec part = { bytes, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	pid_t child = fork();
	int fd;

	if (child)
		return child;
	alarm(60);
	fd = lingering();
	memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
	if (sendmsg(ml_abstract_connect(name), &message, 0) < 0)
		_exit(0); /* the kernel refuses descriptors: nothing is left to show */
	close(fd); /* the message has it, too, so this does not wait */
	pause();
	_exit(0);
}

int main(void)
{
	char name[64];
	struct ucred peer;
	int listener, connection, fd;
	pid_t child;

	alarm(60);
	for (int is_read = 0; is_read < 2; is_read++) {
		snprintf(name, sizeof(name), "lingering-%d-%d", getpid(), is_read);
		listener = ml_abstract_listen(name);
		child = stranger(name);
		while ((connection = ml_abstract_accept(listener, &peer)) < 0)
			usleep(1000);
		while (is_read && ml_abstract_receive(connection, bytes, sizeof(bytes), &fd, 0) < 0 && errno == EAGAIN)
			usleep(1000);
		ml_abstract_close(connection);
		ml_abstract_close(listener);
		kill(child, SIGKILL);
	}
	return 0;
}

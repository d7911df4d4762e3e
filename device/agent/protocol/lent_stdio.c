// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/protocol/lent_stdio.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define TIMEOUT_MS 20000
#define RETRY_MS 20
#define N_STREAMS 3
#define FIRST_BORROWED 3
#define OUT_OF_THE_WAY 10

union control {
	char bytes[CMSG_SPACE(N_STREAMS * sizeof(int))];
	struct cmsghdr head;
};

static int open_socket(const char *name, struct sockaddr_un *address, socklen_t *bytes)
{
	size_t length = strlen(name);

	if (!length || length >= sizeof(address->sun_path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	*address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	memcpy(address->sun_path + 1, name, length); /* sun_path[0] == 0: the abstract name space */
	*bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
	return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

/* Any user may bind an abstract name, and the command's streams are private to its user. */
static bool is_of_same_user(int connection)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer);

	return !getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) && peer.uid == geteuid();
}

static int send_streams(int connection)
{
	const int streams[N_STREAMS] = { 0, 1, 2 };
	union control control = { .head = { .cmsg_len = CMSG_LEN(sizeof(streams)),
					    .cmsg_level = SOL_SOCKET,
					    .cmsg_type = SCM_RIGHTS } };
	struct iovec part = { (void *)"s", 1 };
	struct msghdr message = { .msg_iov = &part,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };

	memcpy(CMSG_DATA(&control.head), streams, sizeof(streams));
	return sendmsg(connection, &message, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

int ml_stdio_lend(const char *name)
{
	struct sockaddr_un address;
	socklen_t bytes;
	int listener = open_socket(name, &address, &bytes), connection;
	struct pollfd source = { .fd = listener, .events = POLLIN };

	if (listener < 0 || bind(listener, (struct sockaddr *)&address, bytes) || listen(listener, 4))
		return 1;
	while (poll(&source, 1, TIMEOUT_MS) == 1) {
		connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (connection >= 0 && is_of_same_user(connection) && !send_streams(connection))
			return 0;
		close(connection);
	}
	return 1;
}

static int connect_lender(const char *name)
{
	struct sockaddr_un address;
	socklen_t bytes;

	for (int waited_ms = 0;; waited_ms += RETRY_MS) {
		int connection = open_socket(name, &address, &bytes);

		if (connection < 0 || !connect(connection, (struct sockaddr *)&address, bytes))
			return connection;
		close(connection);
		if (errno != ECONNREFUSED || waited_ms > TIMEOUT_MS) /* refused: the lender does not listen yet */
			return -1;
		poll(NULL, 0, RETRY_MS);
	}
}

static int receive_streams(int connection, int *streams)
{
	union control control = { .bytes = { 0 } };
	char byte;
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *head;

	if (recvmsg(connection, &message, MSG_CMSG_CLOEXEC) != 1)
		return -1;
	head = CMSG_FIRSTHDR(&message);
	if (!head || head->cmsg_type != SCM_RIGHTS || head->cmsg_len != CMSG_LEN(N_STREAMS * sizeof(int)))
		return -1;
	memcpy(streams, CMSG_DATA(head), N_STREAMS * sizeof(int));
	return 0;
}

/* Moves them to high numbers first: a received number may be the target number of another. */
static int renumber(const int *streams)
{
	int high[N_STREAMS];

	for (int i = 0; i < N_STREAMS; i++) {
		high[i] = fcntl(streams[i], F_DUPFD_CLOEXEC, OUT_OF_THE_WAY);
		close(streams[i]);
	}
	for (int i = 0; i < N_STREAMS; i++) {
		if (dup3(high[i], FIRST_BORROWED + i, O_CLOEXEC) < 0)
			return -1;
		close(high[i]);
	}
	return 0;
}

int ml_stdio_borrow(const char *name)
{
	int streams[N_STREAMS];
	int connection = connect_lender(name);
	bool is_lent = connection >= 0 && is_of_same_user(connection) && !receive_streams(connection, streams);

	if (connection >= 0)
		close(connection);
	if (is_lent && !renumber(streams))
		return 0;
	fprintf(stderr, "could not borrow the command's standard streams: %s\n",
		connection < 0 ? strerror(errno) : "no process of this user lends them (start `memleakd lend` as this user)");
	return -1;
}

// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/protocol/abstract_socket.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "abstract_address.h"

#define QUEUE 4096 /* capped by net.core.somaxconn */

static int make_socket(void)
{
	return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static int close_with(int fd, int error)
{
	if (fd >= 0)
		close(fd);
	errno = error;
	return -1;
}

int ml_abstract_listen(const char *name)
{
	struct sockaddr_un address;
	socklen_t bytes = ml_abstract_address(&address, name);
	int listener = make_socket();

	if (!bytes)
		return close_with(listener, ENAMETOOLONG);
	if (listener >= 0 && !bind(listener, (struct sockaddr *)&address, bytes) && !listen(listener, QUEUE))
		return listener;
	return close_with(listener, errno);
}

int ml_abstract_connect(const char *name)
{
	struct sockaddr_un address;
	socklen_t bytes = ml_abstract_address(&address, name);
	int connection = make_socket();

	if (!bytes)
		return close_with(connection, ENAMETOOLONG);
	if (connection >= 0 && !connect(connection, (struct sockaddr *)&address, bytes))
		return connection;
	return close_with(connection, errno);
}

int ml_abstract_peer(int connection, struct ucred *peer)
{
	socklen_t bytes = sizeof(*peer);

	return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, peer, &bytes);
}

int ml_abstract_accept(int listener, struct ucred *peer)
{
	int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (connection < 0 || !ml_abstract_peer(connection, peer))
		return connection;
	return close_with(connection, errno);
}

/* There is room for one message of n descriptors: the kernel sets MSG_CTRUNC if it dropped any. */
static bool take_descriptors(struct msghdr *message, int *fds, size_t n)
{
	const struct cmsghdr *head = CMSG_FIRSTHDR(message);
	size_t n_sent = 0;

	if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS)
		n_sent = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	for (size_t i = 0; i < n_sent && i < n; i++)
		memcpy(&fds[i], CMSG_DATA(head) + i * sizeof(int), sizeof(int));
	if (!(message->msg_flags & MSG_CTRUNC) && (!n_sent || n_sent == n))
		return true;
	for (size_t i = 0; i < n; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
	return false;
}

ssize_t ml_abstract_receive(int connection, void *bytes, size_t room, int *fds, size_t n)
{
	union {
		char bytes[CMSG_SPACE(ML_ABSTRACT_DESCRIPTORS * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part = { bytes, room };
	/* CMSG_LEN(), not CMSG_SPACE(): the kernel would put further descriptors into the padding. */
	struct msghdr message = { .msg_iov = &part,
				  .msg_iovlen = 1,
				  .msg_control = n ? control.bytes : NULL,
				  .msg_controllen = n ? CMSG_LEN(n * sizeof(int)) : 0 };
	ssize_t received;

	for (size_t i = 0; i < n; i++)
		fds[i] = -1;
	do
		received = recvmsg(connection, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (received < 0 && errno == EINTR);
	if (received < 0 || take_descriptors(&message, fds, n))
		return received;
	errno = EPROTO;
	return -1;
}

// SPDX-License-Identifier: Apache-2.0
#include "agent/protocol/lent_stdio.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/protocol/abstract_socket.h"
#include "agent/protocol/blocks.h"

#define TIMEOUT_NS 20000000000ull
#define RETRY_MS 20
#define N_STREAMS 3
#define FIRST_BORROWED 3
#define OUT_OF_THE_WAY 10

/* Any user may bind an abstract name, and the command's streams are private to its user. */
static bool is_of_same_user(int connection)
{
	struct ucred peer;

	return !ml_abstract_peer(connection, &peer) && peer.uid == geteuid();
}

static int send_streams(int connection)
{
	const int streams[N_STREAMS] = { 0, 1, 2 };
	union {
		char bytes[CMSG_SPACE(sizeof(streams))];
		struct cmsghdr head;
	} control = { .head = { .cmsg_len = CMSG_LEN(sizeof(streams)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
	struct iovec part = { (void *)"s", 1 };
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
	};

	memcpy(CMSG_DATA(&control.head), streams, sizeof(streams));
	return sendmsg(connection, &message, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

/* Milliseconds to the deadline, for poll(). */
static int ms_until(ml_u64 deadline_ns)
{
	ml_u64 now_ns = ml_clock_ns();

	return now_ns < deadline_ns ? (int)((deadline_ns - now_ns) / 1000000) + 1 : 0;
}

int ml_stdio_lend(const char *name)
{
	ml_u64 deadline_ns = ml_clock_ns() + TIMEOUT_NS;
	struct pollfd source = { .fd = ml_abstract_listen(name), .events = POLLIN };
	struct ucred peer;

	while (source.fd >= 0 && poll(&source, 1, ms_until(deadline_ns)) == 1) {
		int connection = ml_abstract_accept(source.fd, &peer);

		if (connection >= 0 && peer.uid == geteuid() && !send_streams(connection))
			return 0;
		if (connection >= 0)
			ml_abstract_close(connection);
	}
	return 1;
}

/* The lender may not listen yet (ECONNREFUSED), or have a full queue (EAGAIN). */
static int connect_lender(const char *name, ml_u64 deadline_ns)
{
	int connection;

	while ((connection = ml_abstract_connect(name)) < 0 && (errno == ECONNREFUSED || errno == EAGAIN) &&
	       ml_clock_ns() < deadline_ns)
		poll(NULL, 0, RETRY_MS);
	return connection;
}

static int receive_streams(int connection, int *streams, ml_u64 deadline_ns)
{
	struct pollfd source = { .fd = connection, .events = POLLIN };
	char byte;

	return poll(&source, 1, ms_until(deadline_ns)) == 1 &&
			       ml_abstract_receive(connection, &byte, 1, streams, N_STREAMS) == 1 && streams[0] >= 0 ?
		       0 :
		       -1;
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
	ml_u64 deadline_ns = ml_clock_ns() + TIMEOUT_NS;
	int connection = connect_lender(name, deadline_ns);
	bool is_lent = connection >= 0 && is_of_same_user(connection) && !receive_streams(connection, streams, deadline_ns);

	if (connection >= 0)
		close(connection);
	if (is_lent && !renumber(streams))
		return 0;
	fprintf(stderr, "could not borrow the command's standard streams: %s\n",
		connection < 0 ? strerror(errno) : "no process of this user lends them (start `memleakd lend` as this user)");
	return -1;
}

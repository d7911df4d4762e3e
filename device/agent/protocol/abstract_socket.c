// SPDX-License-Identifier: Apache-2.0
#include "agent/protocol/abstract_socket.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "abstract_address.h"

#define QUEUE 4096 /* capped by net.core.somaxconn */

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16; the same on all our architectures */
#endif
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

/*
 * A message of another user may hold the last reference to a TCP socket with SO_LINGER. The process that drops the message waits
 * until that user reads the socket's queue, or a signal arrives (net/core/stream.c, sk_stream_wait_close()). So a timer sends one
 * every 5 ms: the first may come before the wait.
 */
#define IMPATIENCE_NS 5000000

static void do_nothing(int number)
{
	(void)number;
}

struct impatience {
	timer_t timer;
	bool is_set;
	struct sigaction action; /* as before: a command that is started later inherits what is ignored */
	sigset_t mask;
};

static void begin_impatience(struct impatience *impatience)
{
	struct sigaction action = { .sa_handler = do_nothing };
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR2 };
	struct itimerspec times = { { 0, IMPATIENCE_NS }, { 0, IMPATIENCE_NS } };
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR2);
	event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
	sigaction(SIGUSR2, &action, &impatience->action);
	pthread_sigmask(SIG_UNBLOCK, &signals, &impatience->mask);
	impatience->is_set = !timer_create(CLOCK_MONOTONIC, &event, &impatience->timer);
	if (impatience->is_set)
		timer_settime(impatience->timer, 0, &times, NULL);
}

static void end_impatience(const struct impatience *impatience)
{
	if (impatience->is_set)
		timer_delete(impatience->timer);
	pthread_sigmask(SIG_SETMASK, &impatience->mask, NULL);
	sigaction(SIGUSR2, &impatience->action, NULL);
}

void ml_abstract_close(int fd)
{
	struct impatience impatience;

	begin_impatience(&impatience);
	close(fd);
	end_impatience(&impatience);
}

int ml_abstract_let_descriptors_in(int connection, bool may_pass)
{
	int value = may_pass;

	return setsockopt(connection, SOL_SOCKET, SO_PASSRIGHTS, &value, sizeof(value));
}

static int make_socket(void)
{
	return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static int close_with(int fd, int error)
{
	if (fd >= 0)
		ml_abstract_close(fd);
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
	if (listener >= 0)
		ml_abstract_let_descriptors_in(listener, false); /* a connection inherits it, before it is accepted */
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
	struct impatience impatience;
	int error;

	for (size_t i = 0; i < n; i++)
		fds[i] = -1;
	begin_impatience(&impatience);
	do
		received = recvmsg(connection, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (received < 0 && errno == EINTR);
	error = received < 0 ? errno : take_descriptors(&message, fds, n) ? 0 : EPROTO;
	end_impatience(&impatience);
	errno = error;
	return error ? -1 : received;
}

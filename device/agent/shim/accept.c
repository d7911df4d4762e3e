// SPDX-License-Identifier: Apache-2.0
/* The agent's side of the handshake (preload/recorder/connect.c is the other): a process that knows the nonce brings a segment. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/shim/settings.h"
#include "agent/shim/target.h"

/* Both sides compute offsets by the same source. */
#include "preload/segment/segment.c"

#define HANDSHAKE_S 5
#define REASONS_MAX 8 /* logged; later ones are only counted */
#define NONCE_DIGITS 16
#define SEALS_NEEDED (F_SEAL_SHRINK | F_SEAL_GROW)

/* getrandom(2) exists since Linux 3.17. */
static int fill_random(void *bytes, size_t n_bytes)
{
	ssize_t n = getrandom(bytes, n_bytes, 0);
	int fd = n < 0 && errno == ENOSYS ? open("/dev/urandom", O_RDONLY | O_CLOEXEC) : -1;

	if (fd >= 0) {
		n = read(fd, bytes, n_bytes);
		close(fd);
	}
	return n == (ssize_t)n_bytes ? 0 : -1;
}

static int make_up(ml_u64 *nonce, char *name, size_t room)
{
	if (fill_random(nonce, sizeof(*nonce)))
		return -1;
	*nonce |= 1;
	snprintf(name, room, "memleakd-%d-%08x", (int)getpid(), (unsigned)(*nonce >> 32) * 2654435761u);
	return 0;
}

static int parse(const char *awaited, ml_u64 *nonce, char *name, size_t room)
{
	const char *colon = strrchr(awaited, ':');
	char *end;

	errno = EINVAL;
	if (!colon || colon == awaited || (size_t)(colon - awaited) >= room || strlen(colon + 1) != NONCE_DIGITS)
		return -1;
	*nonce = strtoull(colon + 1, &end, 16);
	snprintf(name, room, "%.*s", (int)(colon - awaited), awaited);
	return *end || !*nonce ? -1 : 0;
}

int ml_preload_listen(const char *awaited, ml_u64 *nonce, char *name, size_t room)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t length;
	int listener;

	if (awaited ? parse(awaited, nonce, name, room) : make_up(nonce, name, room))
		return -1;
	length = strlen(name);
	if (length >= sizeof(address.sun_path)) {
		errno = EINVAL;
		return -1;
	}
	memcpy(address.sun_path + 1, name, length);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (listener < 0 || (!bind(listener, (void *)&address,
				   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) + (socklen_t)length) &&
			     !listen(listener, 64)))
		return listener;
	close(listener);
	return -1;
}

static int receive(int connection, struct ml_greeting *greeting, int *fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part = { greeting, sizeof(*greeting) };
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	struct cmsghdr *head;
	ssize_t n;

	do
		n = recvmsg(connection, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
	while (n < 0 && errno == EINTR); /* with a timeout also by SIGCONT: signal(7) */
	*fd = -1;
	head = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	if (head && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(fd, CMSG_DATA(head), sizeof(int));
	return n == (ssize_t)sizeof(*greeting) ? 0 : -1;
}

/* A segment that can shrink, or has the wrong size, would kill the agent by SIGBUS. */
static bool is_sound(int fd, ml_u64 bytes)
{
	struct stat status;

	return !fstat(fd, &status) && (ml_u64)status.st_size == bytes &&
	       (fcntl(fd, F_GET_SEALS) & SEALS_NEEDED) == SEALS_NEEDED;
}

static struct ml_preload_target *map_segment(int fd, const struct ml_greeting *expected,
					     const struct ml_settings *settings, const struct ml_layout *layout)
{
	struct ml_preload_target *target = calloc(1, sizeof(*target));
	void *base = mmap(NULL, layout->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);

	if (!target || base == MAP_FAILED) {
		free(target);
		return NULL;
	}
	target->pid = expected->pid;
	target->index = expected->session_index;
	target->memory_fd = dup(fd);
	target->pidfd = (int)syscall(SYS_pidfd_open, expected->pid, 0);
	ml_view_set(&target->view, base, settings, layout);
	return target;
}

static void report_unmeasured(ml_u32 pid, const char *reason, ml_u64 *n_unmeasured)
{
	if (++*n_unmeasured <= REASONS_MAX)
		ml_blocks_log("pid %u was not measured: %s", pid, reason);
}

/* The reason of a shim without shared memory (preload/recorder/connect.c). */
static const char *no_memory_reason(int error)
{
	return error == ENOSYS ? "its kernel has no memfd_create, and the shim needs it (Linux 3.17)" : strerror(error);
}

static struct ml_preload_target *take_segment(int connection, const struct ml_greeting *expected, ml_u64 *n_unmeasured)
{
	struct ml_settings settings = expected->settings;
	struct ml_preload_target *target = NULL;
	struct ml_greeting greeting;
	struct ml_layout layout;
	const char *reason = NULL;
	int fd;

	errno = 0;
	if (receive(connection, &greeting, &fd)) {
		reason = errno == EAGAIN ? "its shim did not answer in time" : NULL; /* NULL: it has ended */
	} else if (greeting.magic != ML_SEGMENT_MAGIC) {
		reason = no_memory_reason((int)(greeting.magic % 4096));
	} else {
		settings.n_threads = greeting.settings.n_threads; /* the target may have less memory */
		settings.n_chunks = greeting.settings.n_chunks;
		settings.max_live = greeting.settings.max_live;
		if (fd >= 0 && !ml_layout_compute(&settings, &layout) && is_sound(fd, layout.bytes))
			target = map_segment(fd, expected, &settings, &layout);
		reason = target ? NULL : "its memory could not be shared";
	}
	if (reason)
		report_unmeasured(expected->pid, reason, n_unmeasured);
	if (fd >= 0)
		close(fd);
	return target;
}

struct ml_preload_target *ml_preload_target_accept(int connection, const struct ml_preload_invitation *invitation,
						   ml_u64 *n_unmeasured, ml_u32 *pid)
{
	struct timeval patience = { HANDSHAKE_S, 0 };
	struct ml_preload_target *target;
	struct ml_greeting greeting;
	struct ml_layout layout;
	struct ucred peer;
	socklen_t bytes = sizeof(peer);
	int fd;

	setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) || receive(connection, &greeting, &fd))
		return NULL;
	*pid = (ml_u32)peer.pid;
	if (fd >= 0)
		close(fd);
	if (greeting.magic != ML_SEGMENT_MAGIC || greeting.nonce != invitation->nonce)
		return NULL;
	if (greeting.wire_version != ML_WIRE_VERSION || invitation->refusal) {
		report_unmeasured((ml_u32)peer.pid,
				invitation->refusal ? invitation->refusal : "its shim is of another wire version",
				n_unmeasured);
		return NULL;
	}
	greeting.session_index = invitation->index;
	greeting.settings = *invitation->settings;
	greeting.pid = (ml_u32)peer.pid;
	if (ml_layout_compute(invitation->settings, &layout) ||
	    send(connection, &greeting, sizeof(greeting), MSG_NOSIGNAL) != (ssize_t)sizeof(greeting))
		return NULL;
	target = take_segment(connection, &greeting, n_unmeasured);
	if (target)
		ml_preload_settings_pairs(target->view.pairs, invitation->config);
	return target;
}

void ml_preload_target_release(int connection)
{
	send(connection, "g", 1, MSG_NOSIGNAL); /* fails if it has ended meanwhile */
}

void ml_preload_target_destroy(struct ml_preload_target *target)
{
	if (!target)
		return;
	ml_maps_texts_destroy(&target->maps, &target->view);
	munmap(target->view.segment, target->view.layout.bytes);
	if (target->memory_fd >= 0)
		close(target->memory_fd);
	if (target->pidfd >= 0)
		close(target->pidfd);
	free(target);
}

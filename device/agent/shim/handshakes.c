// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/handshakes.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "agent/protocol/abstract_socket.h"
#include "agent/protocol/blocks.h"

#define DEADLINE_NS 5000000000ull /* of each step */
#define ACCEPTED_MAX 256          /* at one time; the session goes on between */

static void drop(struct ml_handshakes *handshakes, size_t i)
{
	struct ml_handshake *handshake = &handshakes->all[i];

	if (handshake->connection >= 0)
		ml_abstract_close(handshake->connection);
	if (handshake->memory_fd >= 0)
		ml_abstract_close(handshake->memory_fd);
	memmove(handshake, handshake + 1, (--handshakes->n - i) * sizeof(*handshake));
}

enum progress { WAITS, WHOLE, ENDED, BROKEN };

static enum progress receive(struct ml_handshake *handshake)
{
	int fd = -1;
	ssize_t n;

	if (handshake->fill == sizeof(handshake->greeting))
		return WHOLE;
	n = ml_abstract_receive(handshake->connection, (char *)&handshake->greeting + handshake->fill,
				sizeof(handshake->greeting) - handshake->fill, &fd, handshake->is_invited);
	if (n < 0)
		return errno == EAGAIN ? WAITS : errno == EPROTO ? BROKEN : ENDED;
	if (fd >= 0 && handshake->memory_fd >= 0) {
		ml_abstract_close(fd);
		return BROKEN;
	}
	if (fd >= 0)
		handshake->memory_fd = fd;
	handshake->fill += (size_t)n;
	return !n ? ENDED : handshake->fill == sizeof(handshake->greeting) ? WHOLE : WAITS;
}

/* Whether the handshake may go on. */
static bool greet(struct ml_handshake *handshake, const struct ml_invitation *invitation, enum progress progress)
{
	if (progress != WHOLE)
		return progress == WAITS;
	handshake->has_nonce = handshake->greeting.magic == ML_SEGMENT_MAGIC &&
			       ml_nonce_is_same(&handshake->greeting.nonce, invitation->nonce);
	return handshake->has_nonce;
}

/* ---- accepting ---------------------------------------------------------------------------------------- */

/* The oldest one without the nonce, of a user or (NULL) of all, if there are at least `most` of them; else n. */
static size_t find_surplus(const struct ml_handshakes *handshakes, const uid_t *uid, size_t most)
{
	size_t oldest = handshakes->n, count = 0;

	for (size_t i = handshakes->n; i-- > 0;) {
		const struct ml_handshake *handshake = &handshakes->all[i];

		if (handshake->has_nonce || (uid && handshake->peer.uid != *uid))
			continue;
		oldest = i;
		count++;
	}
	return count < most ? handshakes->n : oldest;
}

/* False: all have the nonce. Others wait in the listener's queue. */
static bool make_room(struct ml_handshakes *handshakes)
{
	size_t surplus = handshakes->n == ML_HANDSHAKES_MAX ? find_surplus(handshakes, NULL, 1) : handshakes->n;

	if (surplus < handshakes->n)
		drop(handshakes, surplus);
	return handshakes->n < ML_HANDSHAKES_MAX;
}

/* Its greeting is usually there already, so that a user's many processes do not count as without the nonce. */
static void add(struct ml_handshakes *handshakes, const struct ml_invitation *invitation, int connection,
		const struct ucred *peer)
{
	struct ml_handshake *handshake = &handshakes->all[handshakes->n++];
	ml_u64 now_ns = ml_clock_ns();
	size_t surplus;

	*handshake = (struct ml_handshake){ .connection = connection,
					    .peer = *peer,
					    .memory_fd = -1,
					    .begun_ns = now_ns,
					    .deadline_ns = now_ns + DEADLINE_NS };
	if (!greet(handshake, invitation, receive(handshake))) {
		drop(handshakes, handshakes->n - 1);
		return;
	}
	surplus = find_surplus(handshakes, &peer->uid, ML_HANDSHAKES_OF_USER + 1);
	if (surplus < handshakes->n)
		drop(handshakes, surplus);
}

void ml_handshakes_accept(struct ml_handshakes *handshakes, int listener, const struct ml_invitation *invitation)
{
	struct ucred peer;
	int connection;

	for (int i = 0; i < ACCEPTED_MAX && make_room(handshakes); i++) {
		connection = ml_abstract_accept(listener, &peer);
		if (connection < 0)
			return;
		add(handshakes, invitation, connection, &peer);
	}
}

size_t ml_handshakes_poll(const struct ml_handshakes *handshakes, struct pollfd *sources)
{
	for (size_t i = 0; i < handshakes->n; i++)
		sources[i] = (struct pollfd){ .fd = handshakes->all[i].connection, .events = POLLIN };
	return handshakes->n;
}

/* ---- answering ---------------------------------------------------------------------------------------- */

/* The reason why it is not invited; NULL: it is. */
static const char *invite(struct ml_handshake *handshake, const struct ml_invitation *invitation)
{
	struct ml_greeting *greeting = &handshake->greeting;

	if (invitation->refusal)
		return invitation->refusal;
	if (greeting->wire_version != ML_WIRE_VERSION)
		return "its shim is of another wire version";
	if (handshake->peer.pid <= 0)
		return "its PID namespace is outside of the agent's";
	greeting->session_index = (*invitation->next_index)++;
	greeting->settings = *invitation->settings;
	greeting->pid = (ml_u32)handshake->peer.pid;
	ml_abstract_let_descriptors_in(handshake->connection, true); /* its memory */
	if (send(handshake->connection, greeting, sizeof(*greeting), MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(*greeting))
		return "its shim did not take the answer";
	handshake->is_invited = true;
	handshake->index = greeting->session_index;
	handshake->fill = 0;
	handshake->deadline_ns = ml_clock_ns() + DEADLINE_NS;
	return NULL;
}

static void take_segment(struct ml_handshake *handshake, const struct ml_invitation *invitation, struct ml_joined *joined)
{
	const struct ml_greeting *greeting = &handshake->greeting;

	if (greeting->magic != ML_SEGMENT_MAGIC) { /* a shim without shared memory (preload/recorder/connect.c): why */
		int error = (int)(greeting->magic % 4096);

		joined->reason = error == ENOSYS ? "its kernel has no memfd_create, and the shim needs it (Linux 3.17)" :
						   strerror(error);
		return;
	}
	joined->target = ml_preload_target_create(&handshake->memory_fd, joined->pid, handshake->index, invitation->settings,
						  &greeting->settings);
	joined->reason = joined->target ? NULL : "its memory could not be shared";
}

/* Whether the handshake is over. */
static bool advance(struct ml_handshake *handshake, const struct ml_invitation *invitation, struct ml_joined *joined)
{
	enum progress progress = receive(handshake);

	*joined = (struct ml_joined){ .connection = -1, .begun_ns = handshake->begun_ns };
	if (!handshake->has_nonce && !greet(handshake, invitation, progress))
		return true;
	if (handshake->has_nonce)
		joined->pid = (ml_u32)handshake->peer.pid;
	if (progress == WAITS && ml_clock_ns() < handshake->deadline_ns)
		return false;
	if (progress == WHOLE && !handshake->is_invited) {
		joined->reason = invite(handshake, invitation);
		return joined->reason != NULL;
	}
	if (progress == WHOLE)
		take_segment(handshake, invitation, joined);
	else if (handshake->is_invited && progress != ENDED)
		joined->reason = progress == WAITS ? "its shim did not answer in time" : "its shim sent more than its memory";
	return true;
}

bool ml_handshakes_next(struct ml_handshakes *handshakes, const struct ml_invitation *invitation, struct ml_joined *joined)
{
	for (size_t i = 0; i < handshakes->n;) {
		struct ml_handshake *handshake = &handshakes->all[i];

		if (!advance(handshake, invitation, joined)) {
			i++;
			continue;
		}
		if (joined->target) {
			joined->connection = handshake->connection;
			handshake->connection = -1;
		}
		drop(handshakes, i);
		if (joined->target || joined->reason)
			return true;
	}
	return false;
}

void ml_handshake_release(int connection)
{
	send(connection, "g", 1, MSG_NOSIGNAL | MSG_DONTWAIT); /* fails if it has ended meanwhile */
}

void ml_handshakes_close(struct ml_handshakes *handshakes)
{
	while (handshakes->n)
		drop(handshakes, handshakes->n - 1);
}

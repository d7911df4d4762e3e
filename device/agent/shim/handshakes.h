/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that ask to join a session (preload/recorder/connect.c is the other end). Every user may connect, so a handshake goes on only
 * when its bytes are there, ends at a deadline, and a user has few that have not proved the nonce. A newer one replaces the oldest:
 * no user keeps another out.
 */
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include "preload/segment/handshake.h"
#include "agent/shim/target.h"

#define ML_HANDSHAKES_MAX 128
#define ML_HANDSHAKES_OF_USER 16 /* without the nonce */

struct ml_handshake {
	int connection;
	struct ucred peer;
	bool has_nonce;
	bool is_invited; /* its next greeting brings the segment */
	int memory_fd;
	ml_u32 index; /* of the process in the session */
	size_t fill; /* bytes of the greeting */
	struct ml_greeting greeting;
	ml_u64 begun_ns, deadline_ns;
};

/* The oldest first. All zero: none. */
struct ml_handshakes {
	struct ml_handshake all[ML_HANDSHAKES_MAX];
	size_t n;
};

struct ml_invitation {
	const struct ml_nonce *nonce;
	const struct ml_settings *settings;
	const char *refusal; /* why no process can join, or NULL */
	ml_u32 *next_index;  /* of the processes of the session */
};

/* A handshake of the session that is over: a target, or the reason why the process cannot be recorded. */
struct ml_joined {
	int connection; /* the process waits for ml_handshake_release(); the caller closes it */
	ml_u32 pid;
	ml_u64 begun_ns;
	struct ml_preload_target *target;
	const char *reason;
};

/* Fills in room for ML_HANDSHAKES_MAX. Returns their number. */
size_t ml_handshakes_poll(const struct ml_handshakes *handshakes, struct pollfd *sources);

/* Takes new connections. */
void ml_handshakes_accept(struct ml_handshakes *handshakes, int listener, const struct ml_invitation *invitation);

/* Continues all handshakes without waiting. True: one of the session is over, and more may be: call it again. */
bool ml_handshakes_next(struct ml_handshakes *handshakes, const struct ml_invitation *invitation, struct ml_joined *joined);

/* Lets the process begin to record. */
void ml_handshake_release(int connection);

void ml_handshakes_close(struct ml_handshakes *handshakes);

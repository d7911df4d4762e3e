/* SPDX-License-Identifier: Apache-2.0 */
/* The running process of a session with hooks: attaching and detaching. */
#pragma once

#include <stdbool.h>

#include "agent/protocol/config.h"
#include "agent/inject/keeper.h"
#include "agent/shim/session_word.h"

struct ml_attached_target {
	struct ml_keeper keeper;
	const char *shim;
	const struct ml_patches *patches; /* of inline hooks, else NULL */
	bool is_attached; /* memleak_attach() succeeded */
};

/* The socket of the session, in the network namespace of the process. -1: after an ERROR block. */
int ml_attached_listen(const struct ml_config *config, struct ml_session_word *word);

/* word: of the session that the process joins. 0, or -1 after an ERROR block. */
int ml_attached_start(struct ml_attached_target *target, const struct ml_config *config, const struct ml_session_word *word);

/* Checks for the result of attaching, and reports its stops. -1: it failed, after an ERROR block. */
int ml_attached_poll(struct ml_attached_target *target);

/* Removes the hooks, in any state. Reports its stops, or logs why it failed. */
void ml_attached_end(struct ml_attached_target *target, bool is_target_gone);

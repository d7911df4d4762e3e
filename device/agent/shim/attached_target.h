/* SPDX-License-Identifier: Apache-2.0 */
/* The running process that a session with hooks is attached to: how it gets in, and out again. */
#ifndef MEMLEAK_ATTACHED_TARGET_H
#define MEMLEAK_ATTACHED_TARGET_H

#include <stdbool.h>

#include "agent/protocol/config.h"
#include "agent/inject/keeper.h"

struct ml_attached_target {
	struct ml_keeper keeper;
	const char *shim;
	const struct ml_patches *patches; /* of inline hooks, else NULL */
	bool is_attached; /* memleak_attach() has said so */
};

/* The socket by which the session is joined, in the network namespace of who runs already. -1: after an ERROR block. */
int ml_attached_listen(const struct ml_config *config, ml_u64 *nonce, char *name, size_t room);

/* name, nonce: of the session, by which the process joins. 0, or -1 after an ERROR block. */
int ml_attached_start(struct ml_attached_target *target, const struct ml_config *config, const char *name, ml_u64 nonce);

/* Has it come in? -1: after an ERROR block, it will not. Once it has, its stops are told of. */
int ml_attached_look(struct ml_attached_target *target);

/* Takes the hooks out; tells of its stops, in a LOG why not. For any state. */
void ml_attached_end(struct ml_attached_target *target, bool is_target_gone);

#endif

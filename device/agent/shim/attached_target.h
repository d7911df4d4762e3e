/* SPDX-License-Identifier: Apache-2.0 */
/* The running process of a session with hooks: attaching and detaching. */
#pragma once

#include "agent/protocol/config.h"
#include "agent/inject/keeper.h"
#include "preload/segment/handshake.h"
#include "agent/shim/processes.h"

#define ML_SESSION_WORD_MAX 96 /* includes the final zero; the shim's ML_CONNECT_TEXT_MAX */

/* NAME:NONCE: the abstract socket of a session, and the proof that a process belongs to it. */
struct ml_session_word {
	char name[ML_SESSION_WORD_MAX];
	char text[ML_SESSION_WORD_MAX]; /* as the shim reads it; only for the eyes of the target's user */
	struct ml_nonce nonce;
};

struct ml_attached_target {
	struct ml_keeper keeper;
	const char *shim;
	const struct ml_patches *patches; /* of inline hooks, else NULL */
	bool is_attached; /* memleak_attach() succeeded */
	struct ml_refusal refusal; /* else */
};

/* The socket of the session, in the network namespace of the process. -1: after an ERROR block. */
int ml_attached_listen(const struct ml_config *config, struct ml_session_word *word);

/* word: of the session that the process joins. 0, or -1 after an ERROR block. */
int ml_attached_start(struct ml_attached_target *target, pid_t pid, const struct ml_config *config,
		      const struct ml_session_word *word);

/* Checks for the result of attaching, and reports its stops. Returns why it failed, or NULL. */
const char *ml_attached_poll(struct ml_attached_target *target);

/* Removes the hooks, in any state. Reports its stops, or logs why it failed. */
void ml_attached_end(struct ml_attached_target *target, bool is_target_gone);

#define ML_ATTACHED_CHILDREN_MAX 128 /* a keeper each */

/*
 * The processes that an attached target had started before, with --follow: each is attached to like the target. One that cannot be is
 * counted as unmeasured, with its reason, and the session goes on. Children that come later join by themselves.
 */
struct ml_attached_children {
	struct ml_attached_target targets[ML_ATTACHED_CHILDREN_MAX];
	size_t count;
	ml_u64 n_beyond; /* not attached to, for want of room */
	const struct ml_config *config;
	const struct ml_session_word *word;
	struct ml_preload_processes *processes;
};

/*
 * Once the target is attached. The first time begins to attach to all its descendants that have not joined; then takes the results that
 * have come.
 */
void ml_attached_children_poll(struct ml_attached_children *children, const struct ml_config *config,
			       const struct ml_session_word *word, struct ml_preload_processes *processes,
			       struct ml_regions *regions);

/* Removes the hooks. */
void ml_attached_children_end(struct ml_attached_children *children);

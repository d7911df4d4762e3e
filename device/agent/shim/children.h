/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With --follow: the programs that begin in the command's children, as the kernel tells them, and which of them never
 * joined the session. Linked statically, they have no shim that could speak for them.
 */
#ifndef MEMLEAK_PRELOAD_CHILDREN_H
#define MEMLEAK_PRELOAD_CHILDREN_H

#include "agent/shim/processes.h"
#include "agent/process/sideband.h"

struct ml_preload_children {
	struct ml_sideband *sideband; /* NULL: the kernel tells nothing */
	struct ml_preload_processes *processes;
	struct ml_preload_child *children; /* who have not joined */
	size_t count, room;
	ml_u64 lost; /* records, or children that there was no memory for */
};

/* The command waits for its release. Says in a LOG block why nothing can be noticed, where that is so. */
void ml_preload_children_open(struct ml_preload_children *children, int command,
			      struct ml_preload_processes *processes);

/* Tells of the programs that have ended meanwhile. */
void ml_preload_children_drain(struct ml_preload_children *children);

/* After a drain: this one has joined. */
void ml_preload_children_joined(struct ml_preload_children *children, ml_u32 pid);

/* Is there a child that has been forked and may still join? */
bool ml_preload_children_awaited(struct ml_preload_children *children);

/* At the end of the session: tells of the programs that go on. */
void ml_preload_children_tell_rest(struct ml_preload_children *children);

void ml_preload_children_close(struct ml_preload_children *children);

#endif

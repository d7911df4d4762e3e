/* SPDX-License-Identifier: Apache-2.0 */
/* A process that the shim records, as the agent sees it through the segment they share. */
#ifndef MEMLEAK_PRELOAD_TARGET_H
#define MEMLEAK_PRELOAD_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "preload/segment/segment.h"
#include "agent/shim/maps.h"

struct ml_preload_target {
	ml_u32 pid;
	ml_u32 index; /* of its program in the session */
	bool is_gone; /* the process ended; its books are still read */
	int pidfd;
	int memory_fd; /* to tell the holes of the segment from its data */
	struct ml_view view;
	ml_u64 evidence_records;
	ml_u64 code_hash; /* of the executable mappings as last looked at */
	struct ml_maps_texts maps;
	char next_name[16]; /* what it was called when last seen inside exec */
	ml_u32 n_hooked; /* rows that were written */
	bool is_hooked_lost_told;
	ml_u64 peak_sent;    /* the generation of the high-water mark that the host knows */
	ml_u64 broken_rings; /* bit i % 64: the target wrote over a ring, which is no longer read */
};

/*
 * An abstract socket, its name, and what proves that who connects belongs to the session: as `awaited` says (NAME:NONCE,
 * 16 hexadecimal digits), or made up where it is NULL. -1: errno.
 */
int ml_preload_listen(const char *awaited, ml_u64 *nonce, char *name, size_t room);

struct ml_preload_invitation {
	ml_u64 nonce;
	ml_u32 index; /* for the next one */
	const struct ml_settings *settings;
	const struct ml_config *config;
	const char *refusal; /* why there is no room for it, or NULL */
};

/*
 * Answers one process on the agent's socket. NULL when it does not belong to the session, or on failure; what belongs
 * to it and cannot be recorded is told to the host, and counted. The process waits until it is released. `pid`: who
 * connected, 0 = not known.
 */
struct ml_preload_target *ml_preload_target_accept(int connection, const struct ml_preload_invitation *invitation,
						   ml_u64 *n_unmeasured, ml_u32 *pid);
void ml_preload_target_release(int connection);
void ml_preload_target_destroy(struct ml_preload_target *target);

/* A number of the target's own as one of the session; 0 stays 0. */
static inline ml_u64 ml_preload_target_sequence(const struct ml_preload_target *target, ml_u64 number)
{
	number &= ML_SEQUENCE_NUMBER_MASK;
	return number ? (ml_u64)target->index << ML_SEQUENCE_NUMBER_BITS | number : 0;
}

/* The counters of a key, NULL when the target has none. */
struct ml_key *ml_preload_target_find_key(const struct ml_preload_target *target, ml_u64 key);
ml_u32 ml_preload_target_key_count(const struct ml_preload_target *target);

struct ml_preload_sink {
	/* Asked first, so that what is not wanted need not be copied. */
	bool (*is_wanted)(void *context, ml_u64 key, ml_u64 stack_hash);
	void (*on_evidence)(void *context, const struct ml_evidence *record);
	void (*on_event)(void *context, const struct ml_event *event);
	void *context;
};

/* Reads all rings; maps are written as blocks at once. Returns the bytes read. */
size_t ml_preload_target_drain(struct ml_preload_target *target, const struct ml_preload_sink *sink);

/*
 * Has the target send its maps anew when its executable mappings changed: code made by a JIT compiler, libraries
 * loaded by a linker that the shim cannot watch.
 */
void ml_preload_target_watch_maps(struct ml_preload_target *target);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A process recorded by the shim, seen through the segment shared with it. */
#ifndef MEMLEAK_PRELOAD_TARGET_H
#define MEMLEAK_PRELOAD_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "preload/segment/segment.h"
#include "agent/shim/maps.h"

struct ml_preload_target {
	ml_u32 pid;
	ml_u32 index; /* of its program in the session */
	bool is_gone; /* the process ended; its tables are still read */
	int pidfd;
	int memory_fd; /* to find holes in the segment */
	struct ml_view view;
	ml_u64 evidence_records;
	ml_u64 code_hash; /* of the executable mappings at the last check */
	struct ml_maps_texts maps;
	char next_name[16]; /* its name when last seen inside exec */
	ml_u32 n_hooked; /* rows written so far */
	bool is_hooked_lost_reported;
	ml_u64 peak_sent;    /* the generation of the high-water mark last sent */
	ml_u64 broken_rings; /* the target corrupted a ring, which is no longer read */
};

/*
 * Creates an abstract socket, its name, and a nonce that proves membership of the session: from `awaited` (NAME:NONCE, 16 hexadecimal
 * digits), or random if that is NULL. -1: errno.
 */
int ml_preload_listen(const char *awaited, ml_u64 *nonce, char *name, size_t room);

struct ml_preload_invitation {
	ml_u64 nonce;
	ml_u32 index; /* for the next one */
	const struct ml_settings *settings;
	const struct ml_config *config;
	const char *refusal; /* why it cannot join, or NULL */
};

/*
 * Answers a process on the socket; it waits until it is released. NULL: failure, or it does not belong to the session. A process that
 * belongs but cannot be recorded is reported and counted. pid: the peer, 0: unknown.
 */
struct ml_preload_target *ml_preload_target_accept(int connection, const struct ml_preload_invitation *invitation,
						   ml_u64 *n_unmeasured, ml_u32 *pid);
void ml_preload_target_release(int connection);
void ml_preload_target_destroy(struct ml_preload_target *target);

/* Converts a sequence number of the target to one of the session; 0 stays 0. */
static inline ml_u64 ml_preload_target_sequence(const struct ml_preload_target *target, ml_u64 number)
{
	number &= ML_SEQUENCE_NUMBER_MASK;
	return number ? (ml_u64)target->index << ML_SEQUENCE_NUMBER_BITS | number : 0;
}

/* The counters of a key; NULL: none. */
struct ml_key *ml_preload_target_find_key(const struct ml_preload_target *target, ml_u64 key);
ml_u32 ml_preload_target_key_count(const struct ml_preload_target *target);

struct ml_preload_sink {
	/* Called first, to copy wanted records only. */
	bool (*is_wanted)(void *context, ml_u64 key, ml_u64 stack_hash);
	void (*on_evidence)(void *context, const struct ml_evidence *record);
	void (*on_event)(void *context, const struct ml_event *event);
	void *context;
};

/* Reads all rings, and writes maps as blocks. Returns the bytes read. */
size_t ml_preload_target_drain(struct ml_preload_target *target, const struct ml_preload_sink *sink);

/*
 * Makes the target send its maps again if its executable mappings changed: by a JIT compiler, or by a linker that the shim cannot
 * watch.
 */
void ml_preload_target_watch_maps(struct ml_preload_target *target);

#endif

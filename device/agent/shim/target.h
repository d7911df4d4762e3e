/* SPDX-License-Identifier: Apache-2.0 */
/* A process recorded by the shim, seen through the segment shared with it. */
#pragma once

#include "preload/segment/segment.h"

/* A text of which pieces have arrived. Pieces of one text follow those of the one before in a ring. */
struct ml_maps_text {
	ml_u64 timestamp_ns;
	char *text;
	size_t bytes, room;
	int is_holed; /* a piece found no room */
};

/* Threads send texts independently, so each ring has its own. */
struct ml_maps_texts {
	struct ml_maps_text *by_ring; /* NULL before the first piece */
	size_t room; /* of all texts */
};

struct ml_preload_target {
	ml_u32 pid;
	ml_u32 index; /* of its program in the session */
	bool is_gone; /* the process ended; its tables are still read */
	int pidfd;
	int memory_fd; /* to find holes in the segment */
	struct ml_view view;
	ml_u64 *tails; /* of the rings: the target may write to its own */
	ml_u64 evidence_records;
	ml_u64 code_hash; /* of the executable mappings at the last check */
	ml_u64 code_hash_written; /* of those that the target could not read */
	ml_u64 maps_watched_ns; /* before the last check */
	struct ml_maps_texts maps;
	char next_name[16]; /* its name when last seen inside exec */
	ml_u32 n_hooked; /* rows written so far */
	bool is_hooked_lost_reported, is_sandbox_logged, is_python_logged, is_sharing_logged;
	ml_u32 logged_loads; /* bits of enum ml_unseen_load */
	ml_u64 peak_sent;    /* the generation of the high-water mark last sent */
	ml_u64 broken_rings; /* the target corrupted a ring, which is no longer read */
};

/*
 * Maps the memory that a process of the session has passed, if it is what was agreed: a sealed memfd of the size of these settings.
 * offered: by the agent; asked: by the process, which may have less room. NULL: it is not. Takes memory_fd, and sets it to -1.
 */
struct ml_preload_target *ml_preload_target_create(int *memory_fd, ml_u32 pid, ml_u32 index, const struct ml_settings *offered,
						   const struct ml_settings *asked);
void ml_preload_target_destroy(struct ml_preload_target *target);

/* Converts a sequence number of the target to one of the session; 0 stays 0. */
static inline ml_u64 ml_preload_target_sequence(const struct ml_preload_target *target, ml_u64 number)
{
	number &= ML_SEQUENCE_NUMBER_MASK;
	return number ? (ml_u64)target->index << ML_SEQUENCE_NUMBER_BITS | number : 0;
}

/* The counters of a key; NULL: none. */
struct ml_key *ml_preload_target_find_key(const struct ml_preload_target *target, ml_u64 key);
struct ml_preload_sink {
	/* Called first, to copy wanted records only. */
	bool (*is_wanted)(void *context, ml_u64 key, ml_u64 stack_hash);
	void (*on_evidence)(void *context, const struct ml_evidence *record);
	void (*on_event)(void *context, const struct ml_event *event);
	void *context;
};

/* Reads all rings, and writes maps as blocks. Returns the bytes read. */
size_t ml_preload_target_drain(struct ml_preload_target *target, const struct ml_preload_sink *sink);

/* Frees the texts of /proc/PID/maps that are not complete. */
void ml_preload_target_drop_maps(struct ml_preload_target *target);

/* Writes new rows of the modules whose slots the shim patches, and renews the agent's sign of life. -1: the host is gone. */
int ml_preload_hooked_write(struct ml_preload_target *target);

/*
 * Makes the target send its maps again if its executable mappings changed: by a JIT compiler, or by a linker that the shim cannot
 * watch.
 */
void ml_preload_target_watch_maps(struct ml_preload_target *target);
/* Whether the target could not read its maps itself. */
bool ml_preload_target_maps_unread(const struct ml_preload_target *target);

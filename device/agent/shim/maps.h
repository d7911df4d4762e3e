/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of /proc/PID/maps that a target sends through its rings, piece by piece. */
#ifndef MEMLEAK_PRELOAD_MAPS_H
#define MEMLEAK_PRELOAD_MAPS_H

#include <stddef.h>

#include "preload/segment/segment.h"

/* A reading of which pieces have arrived. A ring holds the pieces of one behind those of the one before. */
struct ml_maps_text {
	ml_u64 timestamp_ns;
	char *text;
	size_t bytes, room;
	int is_holed; /* there was no room for a piece */
};

/* While one thread's reading is drained up to where it stands, others may begin and end theirs: each has its own place. */
struct ml_maps_texts {
	struct ml_maps_text *by_ring; /* NULL before the first piece */
	size_t room; /* of all texts */
};

/*
 * The next piece in the ring. A whole text is written as a block; one with a hole counts as ML_LOST_MAPPINGS, and a
 * reading that was given up makes way for the next.
 */
void ml_maps_texts_add(struct ml_maps_texts *texts, const struct ml_view *view, ml_u32 pid, ml_u32 ring,
		       const struct ml_maps *head, const void *piece, int is_last);
void ml_maps_texts_destroy(struct ml_maps_texts *texts, const struct ml_view *view);

#endif

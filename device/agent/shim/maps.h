/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of /proc/PID/maps that a target sends through its rings in pieces. */
#ifndef MEMLEAK_PRELOAD_MAPS_H
#define MEMLEAK_PRELOAD_MAPS_H

#include <stddef.h>

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

/*
 * Adds the next piece of a ring. A complete text is written as a block; one with a hole counts as ML_LOST_MAPPINGS; the next text
 * replaces an unfinished one.
 */
void ml_maps_texts_add(struct ml_maps_texts *texts, const struct ml_view *view, ml_u32 pid, ml_u32 ring,
		       const struct ml_maps *head, const void *piece, int is_last);
void ml_maps_texts_destroy(struct ml_maps_texts *texts, const struct ml_view *view);

#endif

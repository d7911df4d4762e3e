// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/maps.h"

#include <stdlib.h>
#include <string.h>

#include "agent/process/process_maps.h"

#define TEXT_ROOM_MAX (16u << 20) /* twice a text of 65,530 lines (vm.max_map_count) */
#define ALL_BYTES_MAX (64u << 20) /* limit, whatever a target sends */

static void drop(struct ml_maps_texts *texts, struct ml_maps_text *text)
{
	texts->room -= text->room;
	free(text->text);
	*text = (struct ml_maps_text){ 0 };
}

/* 0, or -1: no room. */
static int extend(struct ml_maps_texts *texts, struct ml_maps_text *text, const void *piece, size_t bytes)
{
	size_t room = 2 * (text->bytes + bytes);
	char *longer;

	if (text->bytes + bytes > text->room) {
		if (room > TEXT_ROOM_MAX || texts->room + room - text->room > ALL_BYTES_MAX)
			return -1;
		longer = realloc(text->text, room);
		if (!longer)
			return -1;
		texts->room += room - text->room;
		text->text = longer;
		text->room = room;
	}
	if (bytes)
		memcpy(text->text + text->bytes, piece, bytes);
	text->bytes += bytes;
	return 0;
}

void ml_maps_texts_add(struct ml_maps_texts *texts, const struct ml_view *view, ml_u32 pid, ml_u32 ring,
		       const struct ml_maps *head, const void *piece, int is_last)
{
	struct ml_maps_text *text;

	if (!texts->by_ring)
		texts->by_ring = calloc(view->settings.n_threads, sizeof(*texts->by_ring));
	if (!texts->by_ring) {
		__atomic_fetch_add(&view->segment->lost[ML_LOST_MAPPINGS], (ml_u64)is_last, __ATOMIC_RELAXED);
		return;
	}
	text = &texts->by_ring[ring];
	if (text->timestamp_ns != head->timestamp_ns)
		drop(texts, text);
	text->timestamp_ns = head->timestamp_ns;
	text->is_holed |= extend(texts, text, piece, head->text_bytes) != 0;
	if (!is_last)
		return;
	if (text->is_holed)
		__atomic_fetch_add(&view->segment->lost[ML_LOST_MAPPINGS], 1, __ATOMIC_RELAXED);
	else
		ml_process_maps_write(pid, text->timestamp_ns, text->text, text->bytes);
	drop(texts, text);
}

void ml_maps_texts_destroy(struct ml_maps_texts *texts, const struct ml_view *view)
{
	for (ml_u32 ring = 0; texts->by_ring && ring < view->settings.n_threads; ring++)
		drop(texts, &texts->by_ring[ring]);
	free(texts->by_ring);
}

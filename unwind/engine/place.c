/* SPDX-License-Identifier: Apache-2.0 */
/* Frames from where the lanes left them to where the result has them; and what this engine is. */
#include "walk.h"

_Static_assert(sizeof(struct walk_line) == 64 && sizeof(struct walk_lane) == 200, "mirrored in library.py");
_Static_assert(sizeof(struct walk_segment) == 24 && sizeof(struct walk_frame) == 24, "mirrored in library.py");

int64_t walk_version(void)
{
	return (int64_t)WALK_VERSION << 32 | WALK_LANES * WALK_BUFFER_FRAMES << 16 | (int64_t)sizeof(struct walk);
}

void walk_place(const struct walk_frame *frames, const struct walk_segment *segments, int64_t count,
		const uint8_t *outcome, const int64_t *first, uint64_t *address, uint64_t *sp, uint8_t *is_return,
		uint8_t *method)
{
	for (int64_t i = 0; i < count; i++) {
		const struct walk_segment *segment = segments + i;
		const struct walk_frame *frame = frames + segment->first;
		int64_t place = first[segment->sample] + segment->level;

		if (outcome[segment->sample] != WALK_DONE)
			continue;
		for (uint32_t k = 0; k < segment->count; k++, place++) {
			address[place] = frame[k].address;
			sp[place] = frame[k].sp;
			is_return[place] = frame[k].is_return;
			method[place] = frame[k].method;
		}
	}
}

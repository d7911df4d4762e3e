/* SPDX-License-Identifier: Apache-2.0 */
/* Copies frames from a block to the result; and the engine's version. */
#include "walk.h"

_Static_assert(sizeof(struct walk_line) == 64 && sizeof(struct walk_lane) == 200, "mirrored in library.py");
_Static_assert(sizeof(struct walk_interpreter) == 12, "mirrored in library.py");
_Static_assert(sizeof(struct walk_segment) == 24 && sizeof(struct walk_frame) == 24, "mirrored in library.py");

int64_t walk_version(void)
{
	return (int64_t)WALK_VERSION << 32 | WALK_LANES * WALK_BUFFER_FRAMES << 16 | (int64_t)sizeof(struct walk);
}

void walk_copy_frames(const struct walk_frame *frames, const struct walk_segment *segments, int64_t count,
		      const uint8_t *outcome, const int64_t *first, uint64_t *address, uint64_t *sp, uint8_t *is_return,
		      uint8_t *method)
{
	for (int64_t i = 0; i < count; i++) {
		const struct walk_segment *segment = segments + i;
		const struct walk_frame *frame = frames + segment->first;
		int64_t row = first[segment->sample] + segment->level;

		if (outcome[segment->sample] != WALK_DONE)
			continue;
		for (uint32_t k = 0; k < segment->count; k++, row++) {
			address[row] = frame[k].address;
			sp[row] = frame[k].sp;
			is_return[row] = frame[k].is_return;
			method[row] = frame[k].method;
		}
	}
}

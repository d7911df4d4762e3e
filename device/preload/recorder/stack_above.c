// SPDX-License-Identifier: Apache-2.0
#include "preload/recorder/stack_above.h"

#include "preload/freestanding/bytes.h"
#include "preload/stacks/stack_key.h"

ml_u32 ml_stack_above_store(const struct ml_code_map *map, ml_u64 begin, ml_u64 end, struct ml_stack_above *to, ml_u64 *hash)
{
	const unsigned long *stack = (const unsigned long *)(unsigned long)begin;
	ml_u32 *places = (ml_u32 *)&to->words[ML_RING_ABOVE_WORDS]; /* until it is known how many there are */
	ml_u32 n = 0, i;

	if (end - begin > ML_ABOVE_BYTES_MAX)
		end = begin + ML_ABOVE_BYTES_MAX;
	for (i = 0; i < (end - begin) / 8 && n < ML_RING_ABOVE_WORDS; i++) {
		ml_u64 word = stack[i];

		if (word - begin >= end - begin && !ml_code_map_has(map, word))
			continue;
		to->words[n] = word;
		places[n++] = i;
		*hash = ml_stack_mix(*hash, word + ((ml_u64)i << 44));
	}
	if (!n)
		return 0;
	to->reach_bytes = 8 * i;
	to->n_words = n;
	ml_copy(ml_stack_above_places(to), places, n * sizeof(*places));
	if (n % 2)
		ml_stack_above_places(to)[n] = 0;
	return ml_stack_above_bytes(n);
}

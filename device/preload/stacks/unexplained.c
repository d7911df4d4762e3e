// SPDX-License-Identifier: Apache-2.0
#include "preload/stacks/unexplained.h"

#include "preload/segment/code_pages.h"

#define PAUSE_MIN_NS 1000000ull
#define PAUSE_MAX_NS 1000000000ull
#define PAGES 64u
#define OTHERS_MAX 4u /* readings in one pause for new pages, which bounds the cost of random words */

/* Racing threads read once too often. */
static ml_u64 pages[PAGES], next_ns, pause_ns;
static ml_u32 n_others;

static ml_u64 *slot_of(ml_u64 address)
{
	ml_u64 page = address >> ML_CODE_PAGE_SHIFT;

	return &pages[(page ^ page >> 12 ^ page >> 24) % PAGES];
}

int ml_unexplained_is_put_off(ml_u64 address, ml_u64 now_ns)
{
	if (now_ns >= __atomic_load_n(&next_ns, __ATOMIC_RELAXED))
		return 0;
	return __atomic_load_n(&n_others, __ATOMIC_RELAXED) >= OTHERS_MAX ||
	       __atomic_load_n(slot_of(address), __ATOMIC_RELAXED) == address >> ML_CODE_PAGE_SHIFT;
}

void ml_unexplained_note(ml_u64 address, ml_u64 now_ns)
{
	ml_u64 pause = __atomic_load_n(&pause_ns, __ATOMIC_RELAXED);
	int in_pause = now_ns < __atomic_load_n(&next_ns, __ATOMIC_RELAXED);

	if (!address)
		return;
	__atomic_store_n(slot_of(address), address >> ML_CODE_PAGE_SHIFT, __ATOMIC_RELAXED);
	if (in_pause) {
		__atomic_fetch_add(&n_others, 1, __ATOMIC_RELAXED);
		return;
	}
	pause = pause < PAUSE_MAX_NS ? 2 * pause + PAUSE_MIN_NS : pause;
	__atomic_store_n(&n_others, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&pause_ns, pause, __ATOMIC_RELAXED);
	__atomic_store_n(&next_ns, now_ns + pause, __ATOMIC_RELAXED);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The books of ended processes when there is room for 64 stacks: what a process holds is never forgotten for others. */
#define ML_ENDED_KEYS_MAX 64u
#include "agent/shim/ended.c"

/* A process of ten stacks, of which `held` keep a block. */
static ml_u64 held, process;
static int n_remarks;

int ml_preload_rows_keys(const struct ml_preload_target *target, ml_take_key *take, void *context)
{
	for (ml_u64 i = 0; i < 10; i++) {
		struct ml_key_row row = { .key = 1000 * process + i + 1, .alloc_objects = 3, .pid = target->pid };

		row.free_objects = i < held ? 2 : 3;
		take(context, &row);
	}
	process++;
	return 0;
}

int ml_preload_rows_live(const struct ml_preload_target *target, ml_take_live *take, void *context)
{
	(void)target, (void)take, (void)context;
	return 0;
}

struct ml_live_row ml_region_row(const struct ml_region *region)
{
	(void)region;
	return (struct ml_live_row){ 0 };
}

void ml_preload_rows_count(const struct ml_preload_target *target, struct ml_status *status)
{
	(void)target;
	status->alloc_objects += 30;
}

void ml_regions_forget(struct ml_regions *regions, ml_u32 pid, ml_u64 as_of_ns)
{
	(void)regions, (void)pid, (void)as_of_ns;
}

int ml_blocks_log(const char *format, ...)
{
	(void)format;
	return n_remarks++;
}

ml_u64 ml_clock_ns(void)
{
	return 0;
}

/* Of 4,096 keys that differ in their upper bits alone, or in those of their product with the hash's constant. */
static size_t longest_search(int by_product)
{
	struct ml_preload_ended ended = { 0 };
	ml_u64 inverse = PHI;
	size_t longest = 0;

	for (int i = 0; i < 6; i++)
		inverse *= 2 - PHI * inverse;
	for (ml_u64 i = 1; i <= 4096; i++)
		add_held(&ended, &(struct ml_key_row){ .key = (i << 48 | 5) * (by_product ? inverse : 1), .alloc_objects = 1 });
	for (size_t slot = 0; slot < ended.held_slots; slot++) {
		size_t n = (slot - hash(&ended, ended.held[slot].key)) & (ended.held_slots - 1);

		if (ended.held[slot].key && n > longest)
			longest = n;
	}
	ml_preload_ended_destroy(&ended);
	return longest;
}

static ml_u64 objects_of(const struct ml_preload_ended *ended, ml_u64 key)
{
	bool is_counted = false;

	return ml_preload_ended_objects(ended, key, &is_counted);
}

int main(void)
{
	struct ml_preload_ended ended = { .live_max = 1 };
	struct ml_preload_target target = { .pid = 7 };
	struct ml_regions regions = { 0 };
	int failed = 0;

	held = 1;
	for (int i = 0; i < 50; i++) /* 500 stacks, 50 of them with a block */
		ml_preload_ended_add(&ended, &target, &regions);
	for (ml_u64 i = 0; i < 50; i++)
		failed |= objects_of(&ended, 1000 * i + 1) != 1;
	failed |= ended.n_keys > ML_ENDED_KEYS_MAX || n_remarks != 1 || ended.totals.lost[ML_LOST_KEYS_FULL];
	failed |= ended.totals.alloc_objects != 50 * 30;
	held = 10;
	for (int i = 0; i < 5; i++) /* 50 more, all with a block: 36 of the 100 find no room */
		ml_preload_ended_add(&ended, &target, &regions);
	failed |= ended.n_keys != ML_ENDED_KEYS_MAX || ended.totals.lost[ML_LOST_KEYS_FULL] != 36;
	ml_preload_ended_destroy(&ended);
	failed |= longest_search(0) > 256 || longest_search(1) > 256;
	return failed;
}

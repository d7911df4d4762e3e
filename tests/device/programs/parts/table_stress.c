// SPDX-License-Identifier: Apache-2.0
/* The shim's table, keys and rings under many threads, for a sanitizer to watch. Exit code 0: every count is right. */
#include "../../../support/programs/libc.h"

#include "preload/segment/keys.h"
#include "preload/segment/ring.h"
#include "preload/segment/shadow.h"
#include "preload/segment/table.h"

#define THREADS 4
#define ROUNDS 40000
#define HELD 512
#define RECORDS 20000
#define FILL_BASE 0x7e0000000000ull

static struct ml_view view;

/* Each thread has addresses of its own, as live blocks do; the lines of the table are everyone's. */
static void *use_table(void *argument)
{
	uintptr_t self = (uintptr_t)argument;
	struct ml_thread *thread = &view.threads[1 + self];
	uint64_t held[HELD] = { 0 };
	struct ml_entry expected[HELD];
	unsigned seed = (unsigned)self + 1;

	for (int i = 0; i < ROUNDS; i++) {
		int at = rand_r(&seed) % HELD;
		struct ml_entry entry = { .size = (uint64_t)i % (2 * ML_SHADOW_SIZE_MAX), .tid = (uint32_t)self };
		struct ml_entry found;

		if (held[at]) {
			if (!ml_table_claim(&view, thread, held[at], &found) || found.tid != self ||
			    found.sequence != expected[at].sequence ||
			    found.timestamp_ns != expected[at].timestamp_ns)
				return (void *)1;
			held[at] = 0;
			continue;
		}
		held[at] = 0x7f0000000000 + (((uint64_t)rand_r(&seed) % 1000 * HELD + (unsigned)at) * THREADS + self) * 16;
		entry.timestamp_ns = (uint64_t)i / 100 << ML_TICK_SHIFT;
		entry.key_index = ml_keys_find(&view, (uint64_t)(rand_r(&seed) % 300 + 1) << 32);
		if (!entry.key_index || ml_table_insert(&view, thread, ml_table_expect(&view, held[at]), held[at], &entry,
							&found) != ML_TABLE_INSERTED)
			return (void *)2;
		expected[at] = entry;
	}
	for (int i = 0; i < HELD; i++) {
		struct ml_entry found;

		if (held[i] && !ml_table_claim(&view, thread, held[i], &found))
			return (void *)3;
	}
	return NULL;
}

static void *produce(void *argument)
{
	struct ml_thread *thread = argument;

	for (unsigned i = 0; i < RECORDS;) {
		unsigned *room = ml_ring_reserve(&view, thread, 8 + i % 4000);

		if (!room)
			continue;
		room[0] = i;
		ml_ring_commit(&view, thread, ML_RING_EVIDENCE, 8 + i++ % 4000);
	}
	return NULL;
}

static int consume(struct ml_thread *thread)
{
	uint64_t mask = view.settings.ring_bytes - 1;
	unsigned expected = 0;

	while (expected < RECORDS) {
		uint64_t head = __atomic_load_n(&thread->head, __ATOMIC_ACQUIRE);

		while (thread->tail != head) {
			unsigned char *ring = view.rings + (uint64_t)(thread - view.threads) * view.settings.ring_bytes;
			struct ml_ring_record *record = (void *)(ring + (thread->tail & mask));

			if (record->kind == ML_RING_EVIDENCE && *(unsigned *)(record + 1) != expected++)
				return 4;
			__atomic_store_n(&thread->tail, thread->tail + record->bytes, __ATOMIC_RELEASE);
		}
	}
	return 0;
}

static int is_empty(void)
{
	uint64_t slots = (uint64_t)ML_BUCKET_SLOTS << ml_view_level_bits(&view, 0);
	int is_found = 0;

	for (uint64_t i = 0; i < slots; i++)
		is_found |= view.level_slots[0][i].address != 0;
	for (uint32_t i = 0; i < view.settings.n_chunks; i++)
		for (uint32_t granule = 0; view.chunk_numbers[i] && granule < ML_SHADOW_GRANULES; granule++)
			is_found |= view.chunks[i].words[granule] != 0;
	return !is_found;
}

/* Blocks for both halves in turn until there is no more room: never more than the limit, and little less. */
static int fills_up(void)
{
	static uint64_t given[1 << 18];
	static unsigned char is_given[1 << 20];
	uint64_t limit = view.settings.max_live, n = 0;
	struct ml_thread *thread = &view.threads[1];
	struct ml_entry found;

	for (;; n++) {
		struct ml_entry entry = { .size = n % 2 ? ML_SHADOW_SIZE_MAX : 24, .key_index = (uint32_t)n };
		enum ml_table_result result = ml_table_insert(&view, thread, NULL, FILL_BASE + n * 32, &entry, &found);

		if (result == ML_TABLE_FULL)
			break;
		if (result != ML_TABLE_INSERTED || n > limit || is_given[entry.sequence & ((1 << 20) - 1)]++)
			return 0;
		given[n] = entry.sequence;
	}
	for (uint64_t i = 0; i < n; i++)
		if (!ml_table_claim(&view, thread, FILL_BASE + i * 32, &found) || found.sequence != given[i] ||
		    found.key_index != i)
			return 0;
	return n >= limit - limit / 16;
}

/* The argument: chunks of shadow memory, 0 = the hashed half of the table alone. */
int main(int argc, char **argv)
{
	struct ml_settings settings = { .max_live = 100000, .n_threads = 2 * THREADS, .n_keys = 1024, .ring_bytes = 65536 };
	pthread_t ids[THREADS];
	uint64_t n_rests;
	intptr_t failed;
	void *base;

	settings.n_chunks = argc > 1 ? (unsigned)atoi(argv[1]) : 0;
	failed = ml_view_set(&view, NULL, &settings);
	base = mmap(NULL, view.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ml_view_set(&view, base, &settings);
	view.segment->n_levels_open = 1;
	view.segment->n_keys_used = 1;
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&ids[i], NULL, use_table, (void *)i);
	for (int i = 0; i < THREADS; i++) {
		void *result;

		pthread_join(ids[i], &result);
		failed |= (intptr_t)result;
	}
	failed |= !is_empty();
	failed |= !fills_up();
	n_rests = view.segment->n_rests_used;
	failed |= !fills_up() || view.segment->n_rests_used != n_rests; /* what was taken out makes room again */
	failed |= !is_empty();
	pthread_create(&ids[0], NULL, produce, &view.threads[1]);
	failed |= consume(&view.threads[1]);
	pthread_join(ids[0], NULL);
	return (int)failed;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A joined process that writes to its segment as it likes while the agent reads. Arguments: seconds and seed. Writes what does not hold.
 * Under sanitizers; every row and record is read to its end, and a reading comes to an end.
 */
#include "../../../support/programs/libc.h"

#include "agent_stubs.h"
#include "agent/shim/peak.h"
#include "agent/shim/rows.h"
#include "agent/shim/target.h"
#include "small_settings.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define ENDLESS_S 60 /* SIGALRM then ends the program: a reading goes on for as long as the process writes */

static struct ml_view view; /* the process's own mapping */
static volatile int is_over;
static volatile ml_u64 sum; /* of all bytes that the agent's side passed on */
static ml_u64 n_records, n_rows;

/* ---- what the parts call ------------------------------------------------------------------------------ */

static void read_bytes(const void *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		sum += ((const unsigned char *)bytes)[i];
}

int ml_blocks_write(enum ml_block_kind kind, const void *payload, size_t payload_bytes)
{
	(void)kind;
	read_bytes(payload, payload_bytes);
	return 0;
}

int ml_blocks_log(const char *format, ...)
{
	return (void)format, 0;
}

int ml_peak_rows_add(struct ml_peak_rows *rows, ml_u64 key, ml_u64 bytes)
{
	(void)rows;
	sum += key + bytes;
	return 0;
}

int ml_peak_rows_end(struct ml_peak_rows *rows)
{
	(void)rows;
	return 0;
}

/* ---- the process -------------------------------------------------------------------------------------- */

struct random {
	ml_u64 state;
};

static ml_u64 next(struct random *random)
{
	random->state = random->state * 6364136223846793005ull + 1442695040888963407ull;
	return random->state >> 20;
}

static ml_u64 value(struct random *random)
{
	ml_u64 raw = next(random);

	switch (next(random) % 6) {
	case 0: return raw % 4;
	case 1: return raw % 4096 * 8;
	case 2: return (raw % 512 * 8) | (raw % 6) << 32 | (raw & 1) << 40; /* the head of a ring's record */
	case 3: return ~0ull - raw % 4;
	case 4: return raw << 20 | 1;
	default: return raw << 24 ^ raw;
	}
}

/* Words that decide where the agent reads. */
static void write_word(struct random *random)
{
	struct ml_thread *thread = &view.threads[next(random) % settings.n_threads];
	ml_u64 *rings = (ml_u64 *)(void *)view.rings;
	ml_u64 word = value(random);

	switch (next(random) % 9) {
	case 0:
		__atomic_store_n((ml_u64 *)(void *)view.segment + next(random) % (sizeof(struct ml_segment) / 8), word,
				 __ATOMIC_RELAXED);
		break;
	case 1: __atomic_store_n(&view.owners[next(random) % settings.n_threads], word, __ATOMIC_RELAXED); break;
	case 2:
		__atomic_store_n(&thread->head, next(random) % 2 ? thread->tail + word % (1u << 17) : word, __ATOMIC_RELEASE);
		break;
	case 3: __atomic_store_n(&thread->tail, word, __ATOMIC_RELAXED); break;
	case 4:
		__atomic_store_n(&view.key_index[next(random) % (ml_key_near(&settings) + 2 * settings.n_keys)], (ml_u32)word,
				 __ATOMIC_RELAXED);
		break;
	case 5:
		__atomic_store_n((ml_u64 *)(void *)view.keys + next(random) % (settings.n_keys * 8), word, __ATOMIC_RELAXED);
		break;
	case 6: __atomic_store_n(&view.chunk_numbers[next(random) % settings.n_chunks], word, __ATOMIC_RELAXED); break;
	case 7:
		__atomic_store_n((ml_u64 *)(void *)view.chunks + next(random) % (settings.n_chunks * ML_SHADOW_GRANULES), word,
				 __ATOMIC_RELAXED);
		break;
	default:
		__atomic_store_n(&rings[next(random) % (settings.n_threads * (settings.ring_bytes / 8))], word,
				 __ATOMIC_RELAXED);
	}
}

/* Records that are sound at first: the reader comes far. */
static void write_record(struct random *random)
{
	struct ml_thread *thread = &view.threads[next(random) % settings.n_threads];
	unsigned char *ring = view.rings + (size_t)(thread - view.threads) * settings.ring_bytes;
	ml_u64 head = thread->head & ~7ull;
	struct ml_ring_record record = { .bytes = (ml_u32)(8 + next(random) % 64 * 8), .kind = (ml_u32)(next(random) % 6) };
	size_t offset = head & (settings.ring_bytes - 1);

	record.kind |= (ml_u32)(next(random) % 2) << ML_RING_ARGUMENT_SHIFT;
	if (offset + record.bytes > settings.ring_bytes)
		record = (struct ml_ring_record){ (ml_u32)(settings.ring_bytes - offset), ML_RING_PAD };
	memcpy(ring + offset, &record, sizeof(record));
	__atomic_store_n(&thread->head, head + record.bytes, __ATOMIC_RELEASE);
	view.owners[thread - view.threads] = 8;
}

/* Sound events, one more whenever the reader has come to the last: it must not wait for the end of them. */
static void write_events(void)
{
	struct ml_thread *thread = &view.threads[1];
	struct ml_ring_record record = { .bytes = sizeof(record) + sizeof(struct ml_event), .kind = ML_RING_EVENT };
	ml_u64 left = settings.ring_bytes - (thread->head & (settings.ring_bytes - 1));

	view.owners[1] = 8;
	if (thread->head - __atomic_load_n(&thread->tail, __ATOMIC_ACQUIRE) > settings.ring_bytes / 2)
		return;
	if (left < record.bytes)
		record = (struct ml_ring_record){ (ml_u32)left, ML_RING_PAD };
	memcpy(view.rings + settings.ring_bytes + settings.ring_bytes - left, &record, sizeof(record));
	__atomic_store_n(&thread->head, thread->head + record.bytes, __ATOMIC_RELEASE);
}

static void *run_process(void *seed)
{
	struct random random = { (ml_u64)(size_t)seed };

	while (!is_over)
		if ((size_t)seed % 4 == 0)
			write_events();
		else if (next(&random) % 4)
			write_record(&random);
		else
			write_word(&random);
	return NULL;
}

/* ---- the agent ---------------------------------------------------------------------------------------- */

static bool is_wanted(void *context, ml_u64 key, ml_u64 stack_hash)
{
	(void)context;
	return (key ^ stack_hash) % 8 != 1;
}

static void on_evidence(void *context, const struct ml_evidence *record)
{
	(void)context;
	n_records++;
	read_bytes(record, record->record_bytes);
}

static void on_event(void *context, const struct ml_event *event)
{
	(void)context;
	n_records++;
	read_bytes(event, sizeof(*event));
}

static int take_live(void *context, const struct ml_live_row *row)
{
	(void)context;
	n_rows++;
	read_bytes(row, sizeof(*row));
	return 0;
}

static int take_key(void *context, const struct ml_key_row *row)
{
	(void)context;
	n_rows++;
	read_bytes(row, sizeof(*row));
	return 0;
}

static void read_all(struct ml_preload_target *target)
{
	static struct ml_preload_last_peak last;
	struct ml_preload_sink sink = { is_wanted, on_evidence, on_event, NULL };
	struct ml_status status = { 0 };

	alarm(ENDLESS_S);
	ml_preload_target_drain(target, &sink);
	ml_preload_hooked_write(target);
	ml_preload_peak_write(target);
	ml_preload_peak_close(&last, target);
	ml_preload_was_in_peak(&last, &target, 1, 7);
	ml_preload_rows_live(target, take_live, NULL);
	ml_preload_rows_keys(target, take_key, NULL);
	ml_preload_rows_count(target, &status);
	ml_preload_target_find_key(target, sum);
}

/* One process: to its end, and a look at what it left. */
static void run(size_t seed)
{
	int fd = memfd_create("memleak", MFD_ALLOW_SEALING), agents = dup(fd);
	struct ml_preload_target *target;
	pthread_t process;

	ml_view_set(&view, NULL, &settings);
	if (ftruncate(fd, (off_t)view.bytes) || fcntl(fd, F_ADD_SEALS, SEALS))
		puts("no memory");
	ml_view_set(&view, mmap(NULL, view.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), &settings);
	target = ml_preload_target_create(&agents, (ml_u32)getpid(), 0, &settings, &settings);
	if (!target || pthread_create(&process, NULL, run_process, (void *)seed)) {
		puts("no process");
		return;
	}
	for (int i = 0; i < 50; i++) {
		read_all(target);
		if (i % 16 == 15)
			target->broken_rings = 0; /* for the rest of the test */
	}
	is_over = 1;
	pthread_join(process, NULL);
	target->is_gone = true;
	read_all(target);
	ml_preload_target_destroy(target);
	munmap(view.segment, view.bytes);
	close(fd);
	is_over = 0;
}

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 1);
	size_t seed = argc > 2 ? (size_t)atoi(argv[2]) : 1;

	do
		run(seed++);
	while (time(NULL) < end);
	if (!n_records || !n_rows)
		puts("nothing was read: nothing was put to the test");
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
/* KEYS, LIVE and EVIDENCE of this process, while its other threads run. */
#include "preload/linked/recording.h"

#include "preload/freestanding/bytes.h"
#include "preload/freestanding/clock.h"
#include "preload/freestanding/syscalls.h"
#include "preload/segment/keys.h"
#include "preload/segment/ring.h"
#include "preload/segment/table.h"
#include "preload/segment/thread.h"

#define CHUNK 8192u
#define CALL_PAUSE_NS 200000
#define CALL_PAUSES 500

/* Of KEYS or LIVE, with the columns of their rows. */
struct chunk {
	enum ml_block_kind kind;
	int n_wide, n_narrow;
	struct ml_live head; /* struct ml_keys has the same fields */
	ml_u64 wide[7][CHUNK];
	ml_u32 narrow[4][CHUNK];
};

_Static_assert(sizeof(struct chunk) <= ML_RECORDING_SCRATCH_BYTES, "a chunk fits");
_Static_assert(sizeof(struct ml_keys) == sizeof(struct ml_live), "one head for both");

static struct chunk *begin(struct ml_recording *recording, enum ml_block_kind kind, int n_wide, int n_narrow, ml_u64 now_ns)
{
	struct chunk *chunk = (struct chunk *)(void *)recording->scratch;

	chunk->kind = kind;
	chunk->n_wide = n_wide;
	chunk->n_narrow = n_narrow;
	chunk->head = (struct ml_live){ .snapshot = 1, .timestamp_ns = now_ns };
	return chunk;
}

static void write_chunk(struct ml_recording *recording, struct chunk *chunk, ml_u32 is_last)
{
	struct iovec parts[1 + 7 + 4] = { { &chunk->head, sizeof(chunk->head) } };
	int n = 1;

	for (int i = 0; i < chunk->n_wide; i++)
		parts[n++] = (struct iovec){ chunk->wide[i], chunk->head.count * sizeof(ml_u64) };
	for (int i = 0; i < chunk->n_narrow; i++)
		parts[n++] = (struct iovec){ chunk->narrow[i], chunk->head.count * sizeof(ml_u32) };
	chunk->head.last = is_last;
	ml_recording_write(recording, chunk->kind, parts, n);
	chunk->head.count = 0;
}

static void add_row(struct ml_recording *recording, struct chunk *chunk, const ml_u64 *wide, const ml_u32 *narrow)
{
	ml_u32 row = chunk->head.count++;

	for (int i = 0; i < chunk->n_wide; i++)
		chunk->wide[i][row] = wide[i];
	for (int i = 0; i < chunk->n_narrow; i++)
		chunk->narrow[i][row] = narrow[i];
	if (chunk->head.count == CHUNK)
		write_chunk(recording, chunk, 0);
}

static void add_keys(struct ml_recording *recording, const struct ml_view *view, ml_u64 now_ns)
{
	struct chunk *chunk = begin(recording, ML_BLOCK_KEYS, 7, 0, now_ns);

	for (ml_u32 i = 0; i < ml_view_n_keys(view); i++) {
		const volatile struct ml_key *key = &view->keys[i];
		const ml_u64 row[] = { ml_read(&key->key),         ml_read(&key->alloc_objects),
				       ml_read(&key->alloc_bytes), ml_read(&key->free_objects),
				       ml_read(&key->free_bytes),  ml_read(&key->key) & ML_KEY_SAW_PART ? ML_KEY_PARTIAL : 0,
				       view->segment->pid };

		if (row[1])
			add_row(recording, chunk, row, NULL);
	}
	write_chunk(recording, chunk, 1);
}

static void add_block(struct ml_recording *recording, struct chunk *chunk, const struct ml_view *view, ml_u64 address,
		      const struct ml_entry *entry)
{
	const ml_u64 wide[] = { address, entry->size, entry->timestamp_ns, entry->sequence,
				ml_read(&view->keys[entry->key_index & (view->settings.n_keys - 1)].key) };
	const ml_u32 narrow[] = { view->segment->pid, entry->tid, entry->function, (ml_u32)view->settings.sample_bytes };

	add_row(recording, chunk, wide, narrow);
}

/* Only the open levels: reading the others would allocate their pages. */
static void add_blocks(struct ml_recording *recording, const struct ml_view *view, ml_u64 now_ns)
{
	struct chunk *chunk = begin(recording, ML_BLOCK_LIVE, 5, 4, now_ns);
	ml_u32 n_open = __atomic_load_n(&view->segment->n_levels_open, __ATOMIC_ACQUIRE);

	for (ml_u32 level = 0; level < n_open && level < view->n_levels; level++) {
		ml_u64 n_slots = (ml_u64)ML_BUCKET_SLOTS << ml_view_level_bits(view, level);

		for (ml_u64 i = 0; i < n_slots; i++) {
			struct ml_entry entry;
			ml_u64 address = ml_slot_read(view->segment, &view->level_slots[level][i], &entry);

			if (address)
				add_block(recording, chunk, view, address, &entry);
		}
	}
	write_chunk(recording, chunk, 1);
}

void ml_recording_rows(struct ml_recording *recording, const struct ml_view *view)
{
	ml_u64 now_ns = ml_clock_exact_ns();

	add_keys(recording, view, now_ns);
	add_blocks(recording, view, now_ns);
}

struct ml_status ml_recording_count(const struct ml_view *view)
{
	struct ml_status status = { .timestamp_ns = ml_clock_exact_ns() };

	for (ml_u32 i = 0; i < ml_view_n_keys(view); i++) {
		const volatile struct ml_key *key = &view->keys[i];

		status.alloc_objects += ml_read(&key->alloc_objects);
		status.alloc_bytes += ml_read(&key->alloc_bytes);
		status.free_objects += ml_read(&key->free_objects);
		status.free_bytes += ml_read(&key->free_bytes);
	}
	for (int i = 0; i < ML_LOST_MAX; i++)
		status.lost[i] = __atomic_load_n(&view->segment->lost[i], __ATOMIC_RELAXED);
	return status;
}

/* ---- evidence ----------------------------------------------------------------------------------------- */

/* Of one thread. Without an agent nothing is removed from its ring, so what precedes the head never changes. */
static ml_u32 add_ring(struct ml_recording *recording, const struct ml_view *view, ml_u32 slot, ml_u32 fill)
{
	const unsigned char *ring = ml_view_ring(view, slot);
	ml_u64 head = __atomic_load_n(&view->threads[slot].head, __ATOMIC_ACQUIRE);

	for (ml_u64 at = 0; at < head;) {
		const struct ml_ring_record *record = (const void *)(ring + at);
		const struct ml_ring_evidence *evidence = (const void *)(record + 1);

		at += record->bytes;
		if (record->kind != ML_RING_EVIDENCE)
			continue;
		if (fill + record->bytes > ML_RECORDING_SCRATCH_BYTES) {
			ml_recording_write(recording, ML_BLOCK_EVIDENCE, &(struct iovec){ recording->scratch, fill }, 1);
			fill = 0;
		}
		ml_copy(recording->scratch + fill, &evidence->record, evidence->record.record_bytes);
		fill += evidence->record.record_bytes;
	}
	return fill;
}

/*
 * Waits a bounded time: even a thread that allocates continuously is between calls now and then, and a stopped one must
 * not block us.
 */
static void await_call(const struct ml_thread *thread)
{
	for (int i = 0; i < CALL_PAUSES && __atomic_load_n(&thread->is_recording, __ATOMIC_ACQUIRE); i++)
		ml_pause_ns(CALL_PAUSE_NS);
}

void ml_recording_await_calls(const struct ml_view *view)
{
	ml_u64 self = ml_thread_self();

	for (ml_u32 slot = 0; slot < view->settings.n_threads; slot++) {
		ml_u64 owner = __atomic_load_n(&view->owners[slot], __ATOMIC_ACQUIRE) & ~(ml_u64)ML_OWNER_BUSY;

		if (owner && owner != self) /* a signal handler may take the snapshot within a call of its own thread */
			await_call(&view->threads[slot]);
	}
}

void ml_recording_evidence(struct ml_recording *recording, const struct ml_view *view)
{
	ml_u32 fill = 0;

	for (ml_u32 slot = 0; slot < view->settings.n_threads; slot++)
		if (__atomic_load_n(&view->owners[slot], __ATOMIC_ACQUIRE))
			fill = add_ring(recording, view, slot, fill);
	if (fill)
		ml_recording_write(recording, ML_BLOCK_EVIDENCE, &(struct iovec){ recording->scratch, fill }, 1);
}

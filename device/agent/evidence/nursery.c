// SPDX-License-Identifier: Apache-2.0
#include "agent/evidence/nursery.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "agent/protocol/blocks.h"

/* Evidence is written in blocks of about this size: cheap to checksum, small beside the limit. */
#define STAGE_BYTES (1u << 20)

/*
 * Records leave in the order of arrival, so they lie one after another in chunks. A few empty chunks are kept: a page that the
 * kernel has to clear costs more than the record in it.
 */
#define CHUNK_BYTES (HUGE_PAGE_BYTES - sizeof(struct chunk))
#define HUGE_PAGE_BYTES (2u << 20) /* on most machines; elsewhere a chunk is only well aligned */
#define SPARE_CHUNKS 8

/* Blocks that make a key busy, and the number of busy keys whose evidence is written. The table is at most half full. */
#define BUSY_OBJECTS 1000
#define BUSY_KEYS 2048
#define BUSY_SLOTS (2 * BUSY_KEYS)

struct chunk {
	struct chunk *next;
	size_t begin, end; /* of the used part */
	char bytes[] __attribute__((aligned(8)));
};

struct entry {
	ml_u64 due_ns; /* when it is examined */
	struct ml_evidence record;
};

struct ml_nursery {
	struct chunk *oldest, *newest;
	struct chunk *spare;
	size_t n_spare;
	size_t n_entries;
	size_t bytes;
	size_t limit_bytes;
	ml_u64 older_ns;
	struct ml_nursery_source source;
	size_t staged;
	char *stage;
	ml_u32 n_busy;
	ml_u64 busy[BUSY_SLOTS]; /* keys, by open addressing */
};

struct ml_nursery *ml_nursery_create(ml_u64 limit_bytes, ml_u64 older_ns, struct ml_nursery_source source)
{
	struct ml_nursery *nursery = calloc(1, sizeof(*nursery));

	if (!nursery)
		return NULL;
	nursery->stage = malloc(STAGE_BYTES);
	if (!nursery->stage) {
		free(nursery);
		return NULL;
	}
	nursery->limit_bytes = limit_bytes;
	nursery->older_ns = older_ns;
	nursery->source = source;
	return nursery;
}

static void free_chunks(struct chunk *chunk)
{
	for (struct chunk *next; chunk; chunk = next) {
		next = chunk->next;
		free(chunk);
	}
}

void ml_nursery_destroy(struct ml_nursery *nursery)
{
	if (!nursery)
		return;
	free_chunks(nursery->oldest);
	free_chunks(nursery->spare);
	free(nursery->stage);
	free(nursery);
}

/* The used part of a record, which a ring may have padded. */
static ml_u32 used_bytes(const struct ml_evidence *record)
{
	ml_u64 bytes = sizeof(*record) + record->n_registers * sizeof(ml_u64) + record->stack_bytes;

	return record->flags & (ML_EVIDENCE_STACK_SPARSE | ML_EVIDENCE_FRAME_CHAIN | ML_EVIDENCE_STACK_ABOVE |
				ML_EVIDENCE_INTERRUPTED | ML_EVIDENCE_PYTHON_FRAMES) ?
		       record->record_bytes :
		       (ml_u32)((bytes + 7) & ~7ull);
}

/* A chunk with room for `bytes`, or NULL. */
static struct chunk *chunk_for(struct ml_nursery *nursery, size_t bytes)
{
	struct chunk *chunk = nursery->newest;

	if (chunk && CHUNK_BYTES - chunk->end >= bytes)
		return chunk;
	chunk = nursery->spare;
	if (chunk) {
		nursery->spare = chunk->next;
		nursery->n_spare--;
	} else {
		chunk = aligned_alloc(HUGE_PAGE_BYTES, HUGE_PAGE_BYTES);
		if (!chunk)
			return NULL;
		/* One fault per chunk: a huge page is cleared many times faster than page by page. */
		if (nursery->newest)
			madvise(chunk, HUGE_PAGE_BYTES, MADV_HUGEPAGE);
	}
	chunk->next = NULL;
	chunk->begin = chunk->end = 0;
	*(nursery->oldest ? &nursery->newest->next : &nursery->oldest) = chunk;
	nursery->newest = chunk;
	return chunk;
}

static struct entry *oldest_entry(const struct ml_nursery *nursery)
{
	struct chunk *chunk = nursery->oldest;

	return chunk ? (struct entry *)(void *)(chunk->bytes + chunk->begin) : NULL;
}

static size_t entry_bytes(ml_u32 record_bytes)
{
	return sizeof(ml_u64) + record_bytes;
}

static void drop_oldest(struct ml_nursery *nursery)
{
	struct chunk *chunk = nursery->oldest;
	size_t bytes = entry_bytes(oldest_entry(nursery)->record.record_bytes);

	nursery->n_entries--;
	nursery->bytes -= bytes;
	chunk->begin += bytes;
	if (chunk->begin < chunk->end)
		return;
	nursery->oldest = chunk->next;
	if (!nursery->oldest)
		nursery->newest = NULL;
	if (nursery->n_spare >= SPARE_CHUNKS) {
		free(chunk);
		return;
	}
	chunk->next = nursery->spare;
	nursery->spare = chunk;
	nursery->n_spare++;
}

int ml_nursery_add(struct ml_nursery *nursery, const struct ml_evidence *record)
{
	ml_u32 bytes = used_bytes(record);
	size_t needed = entry_bytes(bytes);
	struct chunk *chunk = bytes <= record->record_bytes && needed <= CHUNK_BYTES ? chunk_for(nursery, needed) : NULL;
	struct entry *entry;

	if (!chunk)
		return -1;
	entry = (struct entry *)(void *)(chunk->bytes + chunk->end);
	entry->due_ns = record->timestamp_ns + nursery->older_ns;
	memcpy(&entry->record, record, bytes);
	entry->record.record_bytes = bytes;
	chunk->end += needed;
	nursery->bytes += needed;
	nursery->n_entries++;
	return 0;
}

static int write_stage(struct ml_nursery *nursery)
{
	size_t bytes = nursery->staged;

	nursery->staged = 0;
	return bytes ? ml_blocks_write(ML_BLOCK_EVIDENCE, nursery->stage, bytes) : 0;
}

static int write_record(struct ml_nursery *nursery, const struct ml_evidence *record)
{
	ml_u32 bytes = record->record_bytes;

	if (nursery->staged + bytes > STAGE_BYTES && write_stage(nursery))
		return -1;
	memcpy(nursery->stage + nursery->staged, record, bytes);
	nursery->staged += bytes;
	return 0;
}

/*
 * Evidence is requested again BEFORE it is dropped, and the count is read once more: an allocation between the two reads has either
 * brought evidence of its own or keeps this one.
 */
static bool is_dead(struct ml_nursery *nursery, ml_u64 key)
{
	ml_u64 allocated;

	nursery->source.ask_again(nursery->source.context, key);
	return nursery->source.live_objects(nursery->source.context, key, &allocated) == 0;
}

/* Slot of a key among the busy ones, or the free slot for it. */
static ml_u64 *busy_slot(struct ml_nursery *nursery, ml_u64 key)
{
	size_t i = (size_t)(key >> 20);

	while (nursery->busy[i % BUSY_SLOTS] && nursery->busy[i % BUSY_SLOTS] != key)
		i++;
	return &nursery->busy[i % BUSY_SLOTS];
}

static bool was_in_peak(const struct ml_nursery *nursery, ml_u64 key)
{
	return nursery->source.was_in_peak && nursery->source.was_in_peak(nursery->source.context, key);
}

/* Whether the evidence must be written. Once written, that of a busy key serves its later blocks, too. */
static bool is_wanted(struct ml_nursery *nursery, ml_u64 key)
{
	ml_u64 allocated = 0, *slot;

	if (nursery->source.live_objects(nursery->source.context, key, &allocated))
		return true;
	slot = busy_slot(nursery, key);
	if (*slot == key)
		return false;
	if (nursery->n_busy == BUSY_KEYS || (allocated < BUSY_OBJECTS && !was_in_peak(nursery, key)))
		return !is_dead(nursery, key);
	*slot = key;
	nursery->n_busy++;
	return true;
}

/* Moves the oldest record to the host, or drops it. */
static int release_oldest(struct ml_nursery *nursery)
{
	const struct ml_evidence *record = &oldest_entry(nursery)->record;
	int result = is_wanted(nursery, record->key) ? write_record(nursery, record) : 0;

	drop_oldest(nursery);
	return result;
}

int ml_nursery_age(struct ml_nursery *nursery, ml_u64 now_ns)
{
	while (nursery->n_entries && (nursery->bytes > nursery->limit_bytes || oldest_entry(nursery)->due_ns <= now_ns))
		if (release_oldest(nursery))
			return -1;
	return write_stage(nursery);
}

int ml_nursery_flush(struct ml_nursery *nursery)
{
	return ml_nursery_age(nursery, ~0ull);
}

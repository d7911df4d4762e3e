// SPDX-License-Identifier: Apache-2.0
#include "nursery.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "blocks.h"

/* Evidence leaves in blocks of about this size: large enough to checksum cheaply, small beside the limit. */
#define STAGE_BYTES (1u << 20)

/*
 * Records leave in the order in which they came, so they lie one behind the other in chunks. A few empty ones are kept:
 * a page that the kernel has to clear costs more than the record that goes into it.
 */
#define CHUNK_BYTES (HUGE_PAGE_BYTES - sizeof(struct chunk))
#define HUGE_PAGE_BYTES (2u << 20) /* of most machines; where they are others, a chunk is only aligned well */
#define SPARE_CHUNKS 8

struct chunk {
	struct chunk *next;
	size_t begin, end; /* of what it holds */
	char bytes[] __attribute__((aligned(8)));
};

struct ml_nursery {
	struct chunk *oldest, *newest;
	struct chunk *spare;
	size_t n_spare;
	size_t bytes;
	size_t limit_bytes;
	ml_u64 older_ns;
	struct ml_nursery_source source;
	size_t staged;
	char *stage;
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

size_t ml_nursery_bytes(const struct ml_nursery *nursery)
{
	return nursery->bytes;
}

/* What of a record is used: a ring may have padded it to one of a few sizes. */
static ml_u32 used_bytes(const struct ml_evidence *record)
{
	ml_u64 bytes = sizeof(*record) + record->n_registers * sizeof(ml_u64) + record->stack_bytes;

	return record->flags & ML_EVIDENCE_STACK_SPARSE ? record->record_bytes : (ml_u32)((bytes + 7) & ~7ull);
}

/* A chunk with room for so many bytes, or NULL. */
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
		/* Where much comes, one fault for each chunk: it is cleared many times faster than page by page. */
		if (nursery->newest)
			madvise(chunk, HUGE_PAGE_BYTES, MADV_HUGEPAGE);
	}
	chunk->next = NULL;
	chunk->begin = chunk->end = 0;
	*(nursery->oldest ? &nursery->newest->next : &nursery->oldest) = chunk;
	nursery->newest = chunk;
	return chunk;
}

static const struct ml_evidence *oldest_record(const struct ml_nursery *nursery)
{
	const struct chunk *chunk = nursery->oldest;

	return chunk ? (const struct ml_evidence *)(const void *)(chunk->bytes + chunk->begin) : NULL;
}

static void drop_oldest_record(struct ml_nursery *nursery)
{
	struct chunk *chunk = nursery->oldest;
	ml_u32 bytes = oldest_record(nursery)->record_bytes;

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
	struct chunk *chunk = bytes <= record->record_bytes && bytes <= CHUNK_BYTES ? chunk_for(nursery, bytes) : NULL;

	if (!chunk)
		return -1;
	memcpy(chunk->bytes + chunk->end, record, bytes);
	((struct ml_evidence *)(void *)(chunk->bytes + chunk->end))->record_bytes = bytes;
	chunk->end += bytes;
	nursery->bytes += bytes;
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
 * A key that holds nothing is asked again BEFORE its evidence is dropped, and its count is read once more:
 * an allocation between the two reads has either brought evidence of its own or keeps this one.
 */
static bool is_dead(struct ml_nursery *nursery, ml_u64 key)
{
	if (nursery->source.live_objects(nursery->source.context, key))
		return false;
	nursery->source.ask_again(nursery->source.context, key);
	return nursery->source.live_objects(nursery->source.context, key) == 0;
}

static int release_oldest(struct ml_nursery *nursery)
{
	const struct ml_evidence *record = oldest_record(nursery);
	int result = 0;

	if (!is_dead(nursery, record->key))
		result = write_record(nursery, record);
	drop_oldest_record(nursery);
	return result;
}

int ml_nursery_age(struct ml_nursery *nursery, ml_u64 now_ns)
{
	while (nursery->oldest && (nursery->bytes > nursery->limit_bytes ||
				   oldest_record(nursery)->timestamp_ns + nursery->older_ns <= now_ns))
		if (release_oldest(nursery))
			return -1;
	return write_stage(nursery);
}

int ml_nursery_flush(struct ml_nursery *nursery)
{
	while (nursery->oldest)
		if (release_oldest(nursery))
			return -1;
	return write_stage(nursery);
}

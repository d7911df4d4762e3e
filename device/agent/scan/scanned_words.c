// SPDX-License-Identifier: Apache-2.0
#include "agent/scan/scanned_words.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "agent/protocol/blocks.h"

#define BITMAP_BYTES ((1u << (ML_SCAN_GIBIBYTE_BITS - ML_SCAN_PAGE_BITS)) / 8)
#define BITMAPS_MAX 4096u /* 128 MiB in the agent; a process spread over more is resolved less precisely */
#define GIBIBYTE (1ull << ML_SCAN_GIBIBYTE_BITS)
#define GROUP 64 /* words, of which the bits fill one of ours */
#define CHUNK_BYTES (8u << 20) /* of whole huge pages; at most a sixteenth of one stays empty */
/* Of 64-bit agents: a heap of 2 GiB, a fifth of it pointers. */
#define CHUNKS_MAX (sizeof(void *) == 8 ? ML_SCAN_CHUNKS_MAX : 21u)
#define HUGE_PAGE_BYTES (2u << 20)
#define RECORD_BYTES_MAX(words) (sizeof(struct ml_scanned) + ((words) + GROUP - 1) / GROUP * 8 + (words) * 8)
#define THREADS_MAX 4

static const ml_u8 whole_gibibyte[1] = { 0xff };

/* NULL: no room. */
static ml_u8 *bitmap_of(struct ml_scan_targets *targets, size_t number)
{
	ml_u8 *made;

	if (targets->gibibytes[number])
		return (ml_u8 *)targets->gibibytes[number];
	if (targets->n_bitmaps == BITMAPS_MAX)
		return NULL;
	made = mmap(NULL, BITMAP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (made == MAP_FAILED)
		return NULL;
	targets->n_bitmaps++;
	targets->gibibytes[number] = made;
	return made;
}

static void add_within(struct ml_scan_targets *targets, ml_u64 start, ml_u64 end)
{
	size_t number = start >> ML_SCAN_GIBIBYTE_BITS;
	ml_u64 base = (ml_u64)number << ML_SCAN_GIBIBYTE_BITS;
	ml_u8 *pages;

	if (targets->gibibytes[number] == whole_gibibyte)
		return;
	pages = end - start == GIBIBYTE ? NULL : bitmap_of(targets, number);
	if (!pages) {
		targets->gibibytes[number] = whole_gibibyte;
		return;
	}
	for (ml_u64 page = (start - base) >> ML_SCAN_PAGE_BITS; page < (end - base) >> ML_SCAN_PAGE_BITS; page++)
		pages[page / 8] |= (ml_u8)(1u << page % 8);
}

void ml_scan_targets_add(struct ml_scan_targets *targets, ml_u64 start, ml_u64 end)
{
	if (end > 1ull << ML_SCAN_ADDRESS_BITS)
		end = 1ull << ML_SCAN_ADDRESS_BITS;
	if (start >= end)
		return;
	if (!targets->high || start < targets->low)
		targets->low = start;
	if (end > targets->high)
		targets->high = end;
	while (start < end) {
		ml_u64 next = (start | (GIBIBYTE - 1)) + 1;

		add_within(targets, start, next < end ? next : end);
		start = next;
	}
}

/* address: within the bounds of all. */
static inline bool targets_hold(const struct ml_scan_targets *targets, ml_u64 address)
{
	const ml_u8 *pages = targets->gibibytes[address >> ML_SCAN_GIBIBYTE_BITS];
	ml_u64 page = address >> ML_SCAN_PAGE_BITS & ((1u << (ML_SCAN_GIBIBYTE_BITS - ML_SCAN_PAGE_BITS)) - 1);

	return pages && (pages == whole_gibibyte || pages[page / 8] >> page % 8 & 1);
}

/* The shared work of all threads. */
struct work {
	struct ml_scanned_words *words;
	int pid;
	const struct ml_scan_piece *pieces;
	size_t n_pieces, next; /* next: atomic */
	bool is_full;          /* atomic */
};

struct worker {
	struct work *work;
	size_t chunk; /* of `words`; CHUNKS_MAX: none yet */
	ml_u64 *piece;
	ml_u64 scanned_bytes;
};

static ml_u64 buffers[THREADS_MAX][ML_SCAN_PIECE_BYTES / 8 + GROUP];

int ml_scanned_words_start(struct ml_scanned_words *words, const struct ml_scan_targets *targets, ml_u32 word_bytes)
{
	size_t room = CHUNKS_MAX * CHUNK_BYTES;
	ml_u8 *records =
		mmap(NULL, room + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (records == MAP_FAILED)
		return -1;
	records += -(uintptr_t)records % HUGE_PAGE_BYTES;
	madvise(records, room, MADV_HUGEPAGE); /* fewer faults while the process is stopped */
	*words = (struct ml_scanned_words){ .targets = targets, .mask = ~0ull, .word_bytes = word_bytes, .records = records };
#ifdef __aarch64__
	if (word_bytes == 8)
		words->mask = (1ull << 56) - 1; /* top byte ignore: Documentation/arch/arm64/tagged-address-abi.rst */
#endif
	return 0;
}

static inline ml_u64 word_at(const void *words, size_t i, ml_u32 word_bytes, ml_u64 mask)
{
	return (word_bytes == 8 ? ((const ml_u64 *)words)[i] : ((const ml_u32 *)words)[i]) & mask;
}

/* Writes the values behind one another and returns their bits. */
static inline ml_u64 find_in_group(const struct ml_scanned_words *words, const void *group, ml_u32 word_bytes, ml_u64 **values)
{
	const struct ml_scan_targets *targets = words->targets;
	ml_u64 mask = words->mask, low = targets->low, span = targets->high - low, bits = 0;

	for (size_t i = 0; i < GROUP; i++)
		bits |= (ml_u64)(word_at(group, i, word_bytes, mask) - low < span) << i;
	for (ml_u64 rest = bits; rest; rest &= rest - 1) {
		ml_u64 value = word_at(group, (size_t)__builtin_ctzll(rest), word_bytes, mask);

		if (targets_hold(targets, value))
			*(*values)++ = value;
		else
			bits &= ~(rest & -rest);
	}
	return bits;
}

/* In a chunk that has room for them. */
static void find(struct worker *worker, ml_u64 address, size_t n_words)
{
	struct ml_scanned_words *words = worker->work->words;
	size_t *used = &words->used[worker->chunk];
	struct ml_scanned *record = (void *)(words->records + worker->chunk * CHUNK_BYTES + *used);
	ml_u64 *bits = (ml_u64 *)(record + 1), *first = bits + (n_words + GROUP - 1) / GROUP, *values = first;
	ml_u32 word_bytes = words->word_bytes;

	for (size_t i = 0; i < n_words; i += GROUP) {
		const void *group = (const ml_u8 *)worker->piece + i * word_bytes;

		*bits++ = word_bytes == 8 ? find_in_group(words, group, 8, &values) : find_in_group(words, group, 4, &values);
	}
	if (values == first)
		return;
	*record = (struct ml_scanned){ address, (ml_u32)n_words, (ml_u32)(values - first) };
	*used += (size_t)((ml_u8 *)values - (ml_u8 *)record);
}

static bool has_room(struct worker *worker, size_t bytes)
{
	struct ml_scanned_words *words = worker->work->words;

	if (worker->chunk < CHUNKS_MAX && words->used[worker->chunk] + bytes <= CHUNK_BYTES)
		return true;
	worker->chunk = __atomic_fetch_add(&words->n_chunks, 1, __ATOMIC_RELAXED);
	if (worker->chunk >= CHUNKS_MAX)
		return false;
	words->used[worker->chunk] = 0;
	return true;
}

static bool read_piece(struct worker *worker, const struct ml_scan_piece *piece)
{
	ml_u32 word_bytes = worker->work->words->word_bytes;
	struct iovec local = { worker->piece, (size_t)piece->bytes };
	struct iovec remote = { (void *)(uintptr_t)piece->address, (size_t)piece->bytes };
	ssize_t got = process_vm_readv(worker->work->pid, &local, 1, &remote, 1, 0);
	size_t n_words = got > 0 ? (size_t)got / word_bytes : 0;

	if (!n_words)
		return true;
	if (!has_room(worker, RECORD_BYTES_MAX(n_words)))
		return false;
	memset((ml_u8 *)worker->piece + n_words * word_bytes, 0, (size_t)GROUP * 8); /* refers to nothing */
	find(worker, piece->address, n_words);
	worker->scanned_bytes += n_words * word_bytes;
	return true;
}

static void *read_pieces(void *own)
{
	struct worker *worker = own;
	struct work *work = worker->work;

	while (!__atomic_load_n(&work->is_full, __ATOMIC_RELAXED)) {
		size_t number = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);

		if (number >= work->n_pieces)
			break;
		if (!read_piece(worker, &work->pieces[number]))
			__atomic_store_n(&work->is_full, true, __ATOMIC_RELAXED);
	}
	return NULL;
}

static size_t threads_for(size_t n_pieces)
{
	cpu_set_t ours;
	size_t n = sched_getaffinity(0, sizeof(ours), &ours) ? 1 : (size_t)CPU_COUNT(&ours);

	n = n < THREADS_MAX ? n : THREADS_MAX;
	return n_pieces < n ? n_pieces : n;
}

int ml_scanned_words_read(struct ml_scanned_words *words, int pid, const struct ml_scan_piece *pieces, size_t n_pieces)
{
	struct work work = { .words = words, .pid = pid, .pieces = pieces, .n_pieces = n_pieces };
	size_t n = threads_for(n_pieces);
	struct worker workers[THREADS_MAX];
	pthread_t threads[THREADS_MAX];
	bool is_started[THREADS_MAX] = { false };

	words->n_chunks = 0;
	words->scanned_bytes = 0;
	for (size_t i = 0; i < n; i++) {
		workers[i] = (struct worker){ .work = &work, .chunk = CHUNKS_MAX, .piece = buffers[i] };
		is_started[i] = i && !pthread_create(&threads[i], NULL, read_pieces, &workers[i]);
	}
	if (n)
		read_pieces(&workers[0]);
	for (size_t i = 0; i < n; i++) {
		if (is_started[i])
			pthread_join(threads[i], NULL);
		words->scanned_bytes += workers[i].scanned_bytes;
	}
	if (words->n_chunks > CHUNKS_MAX)
		words->n_chunks = CHUNKS_MAX;
	return work.is_full ? -1 : 0;
}

static int write_chunk(const ml_u8 *records, size_t n_bytes)
{
	for (size_t begin = 0, end = 0; begin < n_bytes; begin = end) {
		while (end < n_bytes) {
			const struct ml_scanned *record = (const void *)(records + end);
			size_t groups = ((size_t)record->n_words + GROUP - 1) / GROUP;
			size_t more = sizeof(*record) + groups * 8 + (size_t)record->n_values * 8;

			if (end + more - begin > ML_BLOCK_PAYLOAD_MAX)
				break;
			end += more;
		}
		if (ml_blocks_write(ML_BLOCK_SCANNED, records + begin, end - begin))
			return -1;
	}
	return 0;
}

int ml_scanned_words_write(const struct ml_scanned_words *words)
{
	for (size_t i = 0; i < words->n_chunks; i++)
		if (write_chunk(words->records + i * CHUNK_BYTES, words->used[i]))
			return -1;
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "scanned_words.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "blocks.h"

#define GROUP 64 /* words, of which the bits fill one of ours */
/* Of 64-bit agents: a heap of 2 GiB, a fifth of it pointers. */
#define ROOM_BYTES (sizeof(void *) == 8 ? 512u << 20 : 160u << 20)
#define RECORD_BYTES_MAX(words) (sizeof(struct ml_scanned) + ((words) + GROUP - 1) / GROUP * 8 + (words) * 8)

static ml_u64 piece[ML_SCAN_PIECE_BYTES / 8 + GROUP];

int ml_scanned_words_start(struct ml_scanned_words *words, const struct ml_scan_targets *targets, ml_u32 word_bytes)
{
	void *records = mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (records == MAP_FAILED)
		return -1;
	madvise(records, ROOM_BYTES, MADV_HUGEPAGE); /* fewer faults while the process stands still */
	*words = (struct ml_scanned_words){ .targets = targets, .mask = ~0ull, .word_bytes = word_bytes, .records = records,
					    .room = ROOM_BYTES };
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

		if (ml_scan_targets_hold(targets, value))
			*(*values)++ = value;
		else
			bits &= ~(rest & -rest);
	}
	return bits;
}

static void find(struct ml_scanned_words *words, ml_u64 address, size_t n_words)
{
	struct ml_scanned *record = (void *)(words->records + words->n_bytes);
	ml_u64 *bits = (ml_u64 *)(record + 1), *first = bits + (n_words + GROUP - 1) / GROUP, *values = first;
	ml_u32 word_bytes = words->word_bytes;

	for (size_t i = 0; i < n_words; i += GROUP) {
		const void *group = (const ml_u8 *)piece + i * word_bytes;

		*bits++ = word_bytes == 8 ? find_in_group(words, group, 8, &values) : find_in_group(words, group, 4, &values);
	}
	if (values == first)
		return;
	*record = (struct ml_scanned){ address, (ml_u32)n_words, (ml_u32)(values - first) };
	words->n_bytes = (size_t)((ml_u8 *)values - words->records);
}

int ml_scanned_words_read(struct ml_scanned_words *words, int pid, ml_u64 address, size_t bytes)
{
	struct iovec local = { piece, bytes }, remote = { (void *)(uintptr_t)address, bytes };
	ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
	size_t n_words = got > 0 ? (size_t)got / words->word_bytes : 0;

	if (words->n_bytes + RECORD_BYTES_MAX(n_words) > words->room)
		return -1;
	memset((ml_u8 *)piece + n_words * words->word_bytes, 0, (size_t)GROUP * 8); /* refers to nothing */
	if (n_words)
		find(words, address, n_words);
	words->scanned_bytes += n_words * words->word_bytes;
	return 0;
}

static size_t record_bytes(const struct ml_scanned *record)
{
	return sizeof(*record) + ((size_t)record->n_words + GROUP - 1) / GROUP * 8 + (size_t)record->n_values * 8;
}

int ml_scanned_words_write(const struct ml_scanned_words *words)
{
	for (size_t begin = 0, end = 0; begin < words->n_bytes; begin = end) {
		while (end < words->n_bytes) {
			size_t more = record_bytes((const void *)(words->records + end));

			if (end + more - begin > ML_BLOCK_PAYLOAD_MAX)
				break;
			end += more;
		}
		if (ml_blocks_write(ML_BLOCK_SCANNED, words->records + begin, end - begin))
			return -1;
	}
	return 0;
}

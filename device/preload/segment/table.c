// SPDX-License-Identifier: Apache-2.0
#include "preload/segment/table.h"

#include "pair_rule.h"
#include "preload/freestanding/atomics.h"
#include "preload/segment/shadow.h"
#include "preload/segment/thread.h"

#define PHI 0x9e3779b97f4a7c15ull /* 2^64 / golden ratio: Knuth's multiplicative hash */
#define PAGE_SHIFT 12  /* a page of the heap has a page of the table */
#define GROUP_BITS 3
#define REGION_SHIFT 9 /* 512 bytes of it have a pair of buckets */
#define GRANULE_SHIFT 5 /* the least distance of two blocks in glibc */
#define PAIR_SLOTS (2 * ML_BUCKET_SLOTS)
#define CHOICES 3 /* pairs of a level in which a block may be */

/*
 * Room for 16 blocks. Neighbours in the heap are neighbours here. A block's own slot is its 32-byte granule in the
 * region. It is found there unless another region was hashed to the pair or another block begins in the granule.
 */
struct pair {
	struct ml_slot *slots;
	ml_u64 *displaced; /* the word and bit for: */
	ml_u64 displaced_bit; /* a block of this pair was put elsewhere while this level was the newest */
	ml_u32 own;
};

static inline struct pair find_pair(const struct ml_view *view, ml_u32 level, ml_u32 choice, ml_u64 address)
{
	ml_u32 bits = ml_view_level_bits(view, level) - 1;
	ml_u64 hash = (address >> PAGE_SHIFT) * PHI;
	ml_u64 number;

	/*
	 * Blocks of a page or more often begin at the same offset in a page; some bits of the hash spread them over the
	 * group.
	 */
	number = (hash >> (64 - bits + GROUP_BITS)) << GROUP_BITS |
		 (((address >> REGION_SHIFT) ^ hash >> 16) & ((1u << GROUP_BITS) - 1));
	/* Spreads pages of small blocks that share a group, block by block. */
	if (choice) {
		hash = (address >> 4 | (ml_u64)choice << 60) * PHI;
		number = ((hash ^ hash >> 31) * PHI) >> (64 - bits);
	}
	return (struct pair){
		view->level_slots[level] + number * PAIR_SLOTS,
		view->level_displaced[level] + number / 64,
		1ull << number % 64,
		(ml_u32)(address >> GRANULE_SHIFT) % PAIR_SLOTS,
	};
}

static inline int put(const struct ml_view *view, struct ml_slot *slot, ml_u64 address, const struct ml_entry *entry)
{
	if (__atomic_load_n(&slot->address, __ATOMIC_RELAXED) || !ml_exchange_if(&slot->address, 0, ML_SLOT_CLAIMED))
		return 0;
	ml_write(&slot->size_function, entry->size | (ml_u64)entry->function << ML_SLOT_SIZE_BITS);
	ml_write(&slot->time_key,
		 ml_ticks(view->segment->start_ns, entry->timestamp_ns) | (ml_u64)entry->key_index << ML_SLOT_TIME_BITS);
	ml_write(&slot->sequence_tid,
		 (entry->sequence & ML_SEQUENCE_NUMBER_MASK) | (ml_u64)entry->tid << ML_SEQUENCE_NUMBER_BITS);
	__atomic_store_n(&slot->address, address, __ATOMIC_RELEASE);
	return 1;
}

static inline int take(const struct ml_view *view, struct ml_slot *slot, ml_u64 address, struct ml_entry *entry)
{
	if (__atomic_load_n(&slot->address, __ATOMIC_ACQUIRE) != address)
		return 0;
	*entry = ml_slot_unpack(view->segment, slot);
	return ml_exchange_if(&slot->address, address, 0);
}

/*
 * Inserts into the newest and largest level, where most frees look first, then into older levels, then into further
 * choices. If all are full the caller opens the next level.
 */
static int put_anywhere(const struct ml_view *view, ml_u32 n_open, ml_u64 address, const struct ml_entry *entry)
{
	for (ml_u32 choice = 0; choice < CHOICES; choice++) {
		for (ml_u32 level = n_open; level-- > 0;) {
			struct pair pair = find_pair(view, level, choice, address);

			for (ml_u32 i = 0; i < PAIR_SLOTS; i++)
				if (put(view, &pair.slots[(pair.own + i) % PAIR_SLOTS], address, entry))
					return 1;
		}
	}
	return 0;
}

/* Returns 0 if the table holds max_live blocks. */
static int count_hashed(const struct ml_view *view)
{
	ml_add(&view->segment->n_hashed, 1);
	if (__builtin_expect(ml_shadow_has_room(view, 0), 1))
		return 1;
	ml_add(&view->segment->n_hashed, ~0ull);
	return 0;
}

/* Not inlined: most blocks are in shadow memory. */
static __attribute__((noinline)) enum ml_table_result insert_hashed(const struct ml_view *view, ml_u64 address,
								    const struct ml_entry *entry, struct ml_entry *old)
{
	ml_u32 *open = &view->segment->n_levels_open;
	ml_u32 n_open = __atomic_load_n(open, __ATOMIC_ACQUIRE);
	struct pair pair;
	enum ml_table_result result = ML_TABLE_INSERTED;

	if (!n_open) /* the session was retired during this call, so all memory reads 0 */
		return ML_TABLE_FULL;
	pair = find_pair(view, n_open - 1, 0, address);
	/* A handle of --pairs is not in the table, or gets a further reference. */
	if (!(address >> ML_PAIR_FAMILY_SHIFT) && take(view, &pair.slots[pair.own], address, old))
		result = ML_TABLE_REPLACED;
	else if (!count_hashed(view))
		return ML_TABLE_FULL;
	if (__builtin_expect(put(view, &pair.slots[pair.own], address, entry), 1))
		return result;
	for (;;) {
		if (!(__atomic_load_n(pair.displaced, __ATOMIC_RELAXED) & pair.displaced_bit))
			__atomic_fetch_or(pair.displaced, pair.displaced_bit, __ATOMIC_RELAXED);
		if (put_anywhere(view, n_open, address, entry))
			return result;
		if (n_open >= view->n_levels) {
			ml_add(&view->segment->n_hashed, ~0ull);
			return ML_TABLE_FULL;
		}
		__atomic_compare_exchange_n(open, &n_open, n_open + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
		n_open = __atomic_load_n(open, __ATOMIC_ACQUIRE);
		if (!n_open)
			return ML_TABLE_FULL;
		pair = find_pair(view, n_open - 1, 0, address);
	}
}

static int take_anywhere(const struct ml_view *view, ml_u32 n_open, ml_u64 address, struct ml_entry *entry)
{
	for (ml_u32 choice = 0; choice < CHOICES; choice++) {
		for (ml_u32 level = n_open; level-- > 0;) {
			struct pair pair = find_pair(view, level, choice, address);

			for (ml_u32 i = 0; i < PAIR_SLOTS; i++)
				if (take(view, &pair.slots[(pair.own + i) % PAIR_SLOTS], address, entry))
					return 1;
		}
	}
	return 0;
}

/*
 * A block inserted while a level was the newest is in its own slot there, or the level's bit says that it was
 * displaced. So most frees of unknown blocks (sampling) read one cache line and one bit a level.
 */
static __attribute__((noinline)) int claim_hashed(const struct ml_view *view, ml_u64 address, struct ml_entry *entry)
{
	ml_u32 n_open = __atomic_load_n(&view->segment->n_levels_open, __ATOMIC_ACQUIRE);
	int is_displaced = 0;

	/* In a big table, fetches all needed lines at once. */
	for (ml_u32 level = n_open; level-- > 0;) {
		struct pair pair = find_pair(view, level, 0, address);

		__builtin_prefetch(&pair.slots[pair.own], 1);
	}
	for (ml_u32 level = n_open; level-- > 0;) {
		struct pair pair = find_pair(view, level, 0, address);

		if (take(view, &pair.slots[pair.own], address, entry))
			return 1;
		is_displaced |= (__atomic_load_n(pair.displaced, __ATOMIC_RELAXED) & pair.displaced_bit) != 0;
	}
	return is_displaced && take_anywhere(view, n_open, address, entry);
}

/* ---- both halves -------------------------------------------------------------------------------------- */

/* Counts blocks in the table and those being inserted or removed. */
static inline void count_in_filter(const struct ml_view *view, ml_u64 address, int change)
{
	ml_u8 *counter = &view->filter[ml_filter_slot(address)];
	ml_u8 count;

	if (!view->settings.sample_bytes)
		return;
	count = __atomic_load_n(counter, __ATOMIC_RELAXED);
	while (count != ML_FILTER_STUCK &&
	       !__atomic_compare_exchange_n(counter, &count, (ml_u8)(count + change), 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

/* Shadow memory has blocks of the heap at multiples of 8. */
#define NO_SHADOW (~ML_PAIR_HANDLE_MASK | 7)

static inline int has_shadow(ml_u64 address, ml_u64 size)
{
	return !(address & NO_SHADOW) && size < ML_SHADOW_SIZE_MAX;
}

/* Replaces a block whose free was missed. */
static __attribute__((noinline)) enum ml_table_result replace(const struct ml_view *view, struct ml_thread *thread, ml_u64 word,
							      struct ml_entry *old)
{
	*old = (struct ml_entry){ .size = ml_shadow_size(word), .key_index = ml_shadow_key_index(word) };
	ml_shadow_return_turn(view, thread, ml_shadow_rest_turn(word));
	return ML_TABLE_REPLACED;
}

/* Returns 0 if the block has no word in shadow memory. */
static inline int insert_shadowed(const struct ml_view *view, struct ml_thread *thread, ml_u64 *shadow, ml_u64 address,
				  struct ml_entry *entry, struct ml_entry *old, enum ml_table_result *result)
{
	ml_u64 word;
	ml_u32 rest_turn;

	if (entry->sequence || !has_shadow(address, entry->size))
		return 0;
	if (__builtin_expect(!shadow, 0))
		shadow = ml_shadow_find_or_make(view, address);
	word = shadow ? __atomic_load_n(shadow, __ATOMIC_ACQUIRE) : 0;
	if (!shadow || (word && !ml_shadow_is_at(word, address)))
		return 0;
	rest_turn = ml_shadow_take_turn(view, thread, entry);
	if (__builtin_expect(rest_turn == ML_SHADOW_NO_REST, 0))
		return 0;
	if (!ml_exchange_if(shadow, word, ml_shadow_word(address, entry, rest_turn))) {
		ml_shadow_return_turn(view, thread, rest_turn);
		entry->sequence = 0;
		return 0;
	}
	*result = word ? replace(view, thread, word, old) : ML_TABLE_INSERTED;
	return 1;
}

enum ml_table_result ml_table_insert(const struct ml_view *view, struct ml_thread *thread, ml_u64 *shadow, ml_u64 address,
				     struct ml_entry *entry, struct ml_entry *old)
{
	enum ml_table_result result;

	count_in_filter(view, address, 1); /* before the block can be found */
	if (__builtin_expect(!insert_shadowed(view, thread, shadow, address, entry, old, &result), 0)) {
		if (!entry->sequence)
			entry->sequence = ml_thread_next_sequence(view, thread);
		result = insert_hashed(view, address, entry, old);
	}
	if (result != ML_TABLE_INSERTED)
		count_in_filter(view, address, -1);
	return result;
}

static inline int claim(const struct ml_view *view, struct ml_thread *thread, ml_u64 address, struct ml_entry *entry,
			int is_whole)
{
	ml_u64 *shadow = address & NO_SHADOW ? NULL : ml_shadow_find(view, address);
	ml_u64 word = shadow ? __atomic_load_n(shadow, __ATOMIC_ACQUIRE) : 0;

	if (shadow && ml_shadow_is_at(word, address)) {
		entry->size = ml_shadow_size(word);
		entry->key_index = ml_shadow_key_index(word);
		if (is_whole && ml_shadow_rest_of(word) < ml_shadow_n_rests(&view->settings))
			*entry = ml_shadow_unpack(view->segment, word, &view->rests[ml_shadow_rest_of(word)]);
		if (!ml_exchange_if(shadow, word, 0))
			return 0;
		ml_shadow_return_turn(view, thread, ml_shadow_rest_turn(word));
	} else {
		if (!claim_hashed(view, address, entry))
			return 0;
		ml_add(&view->segment->n_hashed, ~0ull);
	}
	count_in_filter(view, address, -1);
	return 1;
}

int ml_table_claim(const struct ml_view *view, struct ml_thread *thread, ml_u64 address, struct ml_entry *entry)
{
	return claim(view, thread, address, entry, 1);
}

int ml_table_remove(const struct ml_view *view, struct ml_thread *thread, ml_u64 address, struct ml_entry *entry)
{
	return claim(view, thread, address, entry, 0);
}

ml_u64 *ml_table_expect(const struct ml_view *view, ml_u64 address)
{
	ml_u64 *shadow = ml_shadow_find(view, address);

	if (shadow)
		__builtin_prefetch(shadow, 1);
	return shadow;
}

// SPDX-License-Identifier: Apache-2.0
#include "preload/stacks/stack_key.h"

#include "preload/stacks/frame_chain.h"

#define PHI 0x9e3779b97f4a7c15ull
#define MAX_CHAIN 64

typedef unsigned long word; /* of the architecture */

/* Frame records above the window: { caller's frame pointer, return address }. */
static ml_u64 hash_chain(const struct ml_code_map *map, const struct ml_walk *walk, ml_u64 end)
{
	ml_u64 frame = walk->frame_pointer, low = walk->stack_pointer, hash = walk->hash;

	for (int i = 0; i < MAX_CHAIN; i++) {
		const word *record = (const word *)(word)frame;

		if (frame < low || frame % sizeof(word) || frame > end || end - frame < 2 * sizeof(word) ||
		    !ml_code_map_has(map, record[1]))
			break;
		hash = ml_stack_mix(hash, record[1]);
		low = frame + 2 * sizeof(word);
		frame = record[0];
	}
	return hash;
}

/* A range of words; those that go into the key are noted in *memo, unless it is NULL. */
struct window {
	const struct ml_code_map *map;
	const word *words;
	ml_u32 n;
	ml_u32 first_offset; /* of words[0] in the memo */
	struct ml_memo *memo;
};

static inline ml_u64 add_word(const struct window *window, ml_u64 hash, ml_u32 at)
{
	ml_memo_add_offset(window->memo, window->first_offset + at);
	return ml_stack_mix(hash, window->words[at] + ((ml_u64)at << 48));
}

#if defined(__x86_64__)

typedef ml_u64 words4 __attribute__((vector_size(32), aligned(8), may_alias));
typedef ml_u32 halves8 __attribute__((vector_size(32)));
typedef float floats8 __attribute__((vector_size(32)));

#define EIGHT(x) { x, x, x, x, x, x, x, x }

/*
 * Eight words at a time: page numbers of 32 bits (44 address bits; an exact test follows) are compared with up to two
 * clusters at once. Nearly always one holds the program and the other the libraries.
 */
__attribute__((target("avx2"))) static ml_u64 hash_window_avx2(const struct window *window, ml_u64 hash)
{
	const struct ml_code_map *map = window->map;
	const word *words = window->words;
	const halves8 first0 = EIGHT((ml_u32)map->clusters[0].first_page), count0 = EIGHT(map->clusters[0].n_pages);
	const halves8 first1 = EIGHT((ml_u32)map->clusters[1].first_page), count1 = EIGHT(map->clusters[1].n_pages);
	const halves8 first2 = EIGHT((ml_u32)map->clusters[2].first_page), count2 = EIGHT(map->clusters[2].n_pages);
	const halves8 first3 = EIGHT((ml_u32)map->clusters[3].first_page), count3 = EIGHT(map->clusters[3].n_pages);
	int is_wide = map->n_clusters > 2;

	for (ml_u32 i = 0; i + 8 <= window->n; i += 8) {
		words4 a = *(const words4 *)(words + i) >> ML_CODE_PAGE_SHIFT;
		words4 b = *(const words4 *)(words + i + 4) >> ML_CODE_PAGE_SHIFT;
		halves8 pages = __builtin_shufflevector((halves8)a, (halves8)b, 0, 2, 8, 10, 4, 6, 12, 14);
		halves8 hits = (halves8)(pages - first0 < count0) | (halves8)(pages - first1 < count1);
		ml_u32 mask;

		if (is_wide)
			hits |= (halves8)(pages - first2 < count2) | (halves8)(pages - first3 < count3);
		mask = (ml_u32)__builtin_ia32_movmskps256((floats8)hits);
		while (mask) {
			/* Lanes hold the words 0 1 4 5 2 3 6 7, the order of the in-lane shuffle. */
			ml_u32 lane = (ml_u32)__builtin_ctz(mask);
			ml_u32 at = i + (lane & ~6u) + ((lane & 2) << 1) + ((lane & 4) >> 1);

			mask &= mask - 1;
			if (ml_code_map_has(map, words[at]))
				hash = add_word(window, hash, at);
		}
	}
	return hash;
}

static int find_avx2(void)
{
	ml_u32 a = 1, b, c = 0, d, xcr0;

	__asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
	if (!(c & (1u << 27)) || !(c & (1u << 28))) /* OSXSAVE, AVX */
		return 0;
	__asm__("xgetbv" : "=a"(xcr0), "=d"(d) : "c"(0));
	a = 7;
	c = 0;
	__asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
	return (xcr0 & 6) == 6 && b & (1u << 5);
}

/* Racing threads find the same, and must: without it the words of a window are mixed in another order. */
static int has_avx2(void)
{
	static int known; /* 0 = unknown, 1 = no, 2 = yes */
	int now = __atomic_load_n(&known, __ATOMIC_RELAXED);

	if (!now) {
		now = find_avx2() ? 2 : 1;
		__atomic_store_n(&known, now, __ATOMIC_RELAXED);
	}
	return now == 2;
}

#endif

static ml_u64 hash_window(const struct window *window, ml_u64 hash)
{
	ml_u32 i = 0;

#if defined(__x86_64__)
	if (has_avx2()) {
		hash = hash_window_avx2(window, hash);
		i = window->n & ~7u;
	}
#endif
	for (; i < window->n; i++)
		if (ml_code_map_has(window->map, window->words[i]))
			hash = add_word(window, hash, i);
	return hash;
}

/* Adds the stack beyond the rules' end. Returns ML_KEY_SAW_PART if its end was not reached. */
static ml_u64 hash_rest(const struct ml_view *view, const struct ml_code_map *map, const struct ml_caller *caller,
			struct ml_walk *walk, struct ml_memo *memo)
{
	ml_u64 sp = walk->stack_pointer, key_bytes = view->settings.key_bytes;
	ml_u64 bytes = caller->readable_end > sp ? caller->readable_end - sp : 0;
	ml_u64 depth = caller->stack_end ? caller->stack_end - sp : sp;
	struct window window = {
		.map = map,
		.words = (const word *)(word)sp,
		.n = (ml_u32)((bytes < key_bytes ? bytes : key_bytes) / sizeof(word)),
		.first_offset = (ml_u32)((sp - caller->stack_pointer) / sizeof(word)),
		.memo = memo,
	};

	walk->hash = hash_window(&window, ml_stack_mix(walk->hash, depth));
	if (caller->stack_end && caller->stack_end == caller->readable_end)
		walk->hash = hash_chain(map, walk, caller->stack_end);
	return !caller->stack_end || depth > key_bytes ? ML_KEY_SAW_PART : 0;
}

/* Adds what is beyond the rules' end: of this stack, and of that which a handler has interrupted. */
static ml_u64 hash_rests(const struct ml_view *view, const struct ml_code_map *map, const struct ml_caller *caller,
			 struct ml_walk *walk, struct ml_memo *memo)
{
	const struct ml_caller *interrupted = caller->interrupted ? &caller->interrupted->caller : NULL;
	int is_through = walk->caller == interrupted;
	ml_u64 bits = hash_rest(view, map, walk->caller, walk, is_through ? NULL : memo);

	if (!interrupted || is_through)
		return bits;
	if (!interrupted->stack_pointer)
		return ML_KEY_SAW_PART;
	walk->hash = ml_stack_mix(walk->hash, interrupted->return_address);
	walk->stack_pointer = interrupted->stack_pointer;
	walk->frame_pointer = interrupted->frame_pointer;
	return bits | hash_rest(view, map, interrupted, walk, NULL);
}

ml_u64 ml_stack_key(const struct ml_view *view, const struct ml_code_map *map, const struct ml_caller *caller,
		    const struct ml_notes *notes)
{
	struct ml_memo *memo = notes->memo;
	ml_u64 address = ml_strip_signature(caller->return_address, map->signature_mask);
	struct ml_walk walk = { .hash = ml_stack_mix(address ^ caller->python, (ml_u64)map->generation << 48) };
	ml_u64 bits = ML_KEY_IS_EXACT;
	int is_chain = 0;

	if (memo) {
		memo->n_offsets = 0;
		memo->uses_fp = 0;
		memo->revision = map->revision;
		memo->rules_revision = __atomic_load_n(&view->segment->rules_revision, __ATOMIC_ACQUIRE);
	}
	if ((view->settings.flags & (ML_SETTING_NO_STACK | ML_SETTING_CHAIN_BY_CFI)) == ML_SETTING_NO_STACK) {
		if (notes->unknown)
			*notes->unknown = ml_code_map_has(map, address) ? 0 : address;
		return ml_chain_key(map, caller, memo);
	}
	if (!ml_frame_walk(view, map, caller, &walk, notes)) {
		/* Without the stack, evidence is only the walk: one key, one chain. */
		is_chain = (view->settings.flags & ML_SETTING_NO_STACK) != 0;
		bits = is_chain ? ML_KEY_IS_EXACT : hash_rests(view, map, caller, &walk, memo);
		if (notes->unknown)
			*notes->unknown = ml_code_map_has(map, walk.without_rule) ? 0 : walk.without_rule;
		if (memo)
			memo->uses_fp = 1;
	}
	if (memo)
		memo->is_exact = bits == ML_KEY_IS_EXACT && !is_chain;
	if (memo && caller->interrupted)
		memo->n_offsets = ML_MEMO_OFFSETS + 1; /* the words of one stack do not decide the key */
	walk.hash = ml_stack_mix(walk.hash, PHI) & ~(ml_u64)(ML_KEY_SAW_PART | ML_KEY_IS_EXACT);
	return walk.hash | bits ? walk.hash | bits : ML_KEY_SAW_PART;
}

ml_u64 ml_stack_hash(const struct ml_code_map *map, const void *slice, ml_u32 bytes)
{
	struct window window = { .map = map, .words = slice, .n = (ml_u32)(bytes / sizeof(word)) };

	return ml_stack_mix(hash_window(&window, PHI), bytes);
}

#define ADD(sum, factor, at) ((sum) = (sum) * (factor) + stack[memo->offsets[at]])

/* Four polynomials by odd factors, whose loads are independent. A single different word cannot cancel out. */
static inline ml_u64 hash_words(const struct ml_memo *memo, ml_u64 stack_pointer)
{
	const word *stack = (const word *)(word)stack_pointer;
	ml_u64 a = 0, b = 0, c = 0, d = 0;
	ml_u32 i = 0, n = memo->n_offsets;

	for (; i + 4 <= n; i += 4) {
		ADD(a, 0xd6e8feb86659fd93ull, i);
		ADD(b, 0xa0761d6478bd642full, i + 1);
		ADD(c, 0xe7037ed1a0b428dbull, i + 2);
		ADD(d, 0x8ebc6af09c88c6e3ull, i + 3);
	}
	if (n & 2) {
		ADD(a, 0xd6e8feb86659fd93ull, i);
		ADD(b, 0xa0761d6478bd642full, i + 1);
		i += 2;
	}
	if (n & 1)
		ADD(c, 0xe7037ed1a0b428dbull, i);
	return ml_stack_mix(ml_stack_mix(a, b), ml_stack_mix(c, d));
}

int ml_stack_is_same(const struct ml_memo *memo, const struct ml_caller *caller, ml_u32 revision, ml_u32 rules_revision)
{
	return memo->return_address == caller->return_address && memo->stack_pointer == caller->stack_pointer &&
	       memo->python == caller->python && memo->revision == revision &&
	       (memo->is_exact || memo->rules_revision == rules_revision) &&
	       (!memo->uses_fp || memo->frame_pointer == caller->frame_pointer) &&
	       memo->reach_bytes <= caller->readable_end - caller->stack_pointer &&
	       hash_words(memo, caller->stack_pointer) == memo->words;
}

static ml_u32 reach_of(const struct ml_memo *memo)
{
	ml_u32 reach = 0;

	for (ml_u32 i = 0; i < memo->n_offsets && i < ML_MEMO_OFFSETS; i++)
		if (memo->offsets[i] >= reach)
			reach = memo->offsets[i] + 1u;
	return reach * (ml_u32)sizeof(word);
}

void ml_stack_remember(struct ml_memo *memo, const struct ml_caller *caller, ml_u64 key, ml_u32 key_number)
{
	memo->return_address = memo->n_offsets <= ML_MEMO_OFFSETS ? caller->return_address : 0;
	memo->stack_pointer = caller->stack_pointer;
	memo->frame_pointer = caller->frame_pointer;
	memo->python = caller->python;
	memo->words = memo->return_address ? hash_words(memo, caller->stack_pointer) : 0;
	memo->reach_bytes = reach_of(memo);
	memo->key = key;
	memo->key_number = key_number;
}

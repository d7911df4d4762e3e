/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory shared by the shim inside a target and the agent: events of the shim come in, the agent reads them. It is
 * a sealed memfd that the shim makes; what is in it survives the target's SIGKILL, _exit and exec.
 *
 * struct ml_segment | code maps | frame rules | owners | threads | memos | key index | keys | peaks | filter | shadow
 * chunks and rests | live table levels | rings | hooked modules | pairs | Python functions | children
 *
 * Sparse: only touched pages take memory. Sizes follow from struct ml_settings alone (ml_view_set), so the agent
 * never uses an offset that the target could have written.
 */
#pragma once

#include "frame_rule.h"
#include "wire.h"
#include "preload/segment/code_pages.h"
#include "preload/segment/handshake.h"
#include "preload/segment/pair_table.h"
#include "preload/segment/parts.h"
#include "preload/freestanding/atomics.h"
#include "preload/freestanding/sandbox.h"

#define ML_SEGMENT_NAME "memleak" /* of the memfd, in /proc/PID/maps */

/* ---- threads and their rings ------------------------------------------------------------------------ */

/*
 * The owners of slots are an array of their own, so that a look-up touches one cache line: thread pointer ^ tid <<
 * ML_OWNER_TID_SHIFT | ML_OWNER_BUSY while its thread writes to the ring; 0 = never used. Thread pointers are at least 8-byte
 * aligned.
 */
#define ML_OWNER_BUSY 1u
#define ML_OWNER_TID_SHIFT 42

#define ML_THREAD_RULES 512u /* power of two */
#define ML_THREAD_RESTS 256u
#define ML_THREAD_CALLERS 512u /* power of two */
#define ML_THREAD_HINTS 1024u /* power of two */

/* Offsets of stack words that distinguish most of the stacks below a call (memo.h). */
#define ML_OUTLINE_OFFSETS 28u

struct ml_outline {
	ml_u16 n_offsets;
	ml_u16 n_forgotten; /* memos that were replaced and made again */
	ml_u32 since;       /* the thread's next_sequence when counting began */
	ml_u16 offsets[ML_OUTLINE_OFFSETS]; /* as in struct ml_memo */
};

/* Consecutive blocks of a thread from one function at one clock tick share a rest: the data of blocks that only a snapshot reads. */
struct ml_open_rest {
	ml_u32 number; /* plus 1; 0 = none */
	ml_u32 n_blocks;
	ml_u64 timestamp_ns;
	ml_u64 sequence; /* that of block n is this + n */
	ml_u32 function;
};

#define ML_OPEN_RESTS 4u /* by function; power of two */

struct ml_thread {
	ml_u64 stack_low;  /* the thread's own stack, from the maps */
	ml_u64 stack_high; /* 0 = not looked up yet */
	ml_u64 foreign_low;  /* the last other stack seen */
	ml_u64 foreign_high; /* (signal stack, coroutine) */
	ml_u64 next_sequence; /* see thread.h */
	ml_u64 random;
	ml_u64 countdown; /* bytes to the next sample; 0 = none drawn yet */
	ml_u64 untracked_frees;
	ml_u32 tid;
	ml_u32 is_in_lookup; /* a memo of this thread is in use; a signal handler must not use any */
	ml_u32 next_way;  /* the way of a memo set to be replaced next */
	ml_u32 is_recording; /* in the middle of recording a block: see recorder.c */
	ml_u64 pending_bytes;    /* not yet added to the high-water mark's total; signed */
	ml_u64 stuck_tail; /* tail + 1 when waiting for room failed */
	ml_u64 is_inside; /* in a call that may call others of the family: calloc → malloc in musl; ML_INSIDE_OBJECTS */
	/* The ring. Positions only grow; producer and consumer have a cache line each. */
	ml_u64 head __attribute__((aligned(64)));
	ml_u64 cached_tail;
	ml_u64 tail __attribute__((aligned(64)));
	char scratch[4096] __attribute__((aligned(64))); /* for reading maps; guarded by ML_OWNER_BUSY */
	/*
	 * Cache of the rules used, by return address, which takes the place of the hash: one cache line in place of a
	 * set. Guarded by is_in_lookup.
	 */
	struct ml_frame_rule rules[ML_THREAD_RULES];
	ml_u32 rules_generation; /* of the code map */
	struct ml_outline outlines[ML_THREAD_CALLERS]; /* by return address; guarded as rules */
	ml_u16 hints[ML_THREAD_HINTS]; /* the last memo by return address and depth; guarded as rules */
	/* This thread's stack of free rests of shadow memory. */
	ml_u32 is_at_rests; /* a signal handler must not use them */
	ml_u32 n_free_rests;
	struct ml_open_rest open_rests[ML_OPEN_RESTS];
	ml_u64 n_freed; /* not yet subtracted from n_shadowed */
	/* Calls of --pairs in progress, the outermost first. */
	ml_u32 n_pair_calls;
	struct ml_pair_pending pair_calls[ML_PAIR_PENDING];
	ml_u32 free_rests[ML_THREAD_RESTS];
};

/*
 * A known stack. The key is unchanged while the return address and every word that went into the key are: by induction
 * from the innermost frame on, the same return addresses are at the same offsets. Seven cache lines, of which most
 * stacks need two. The odd number spreads them over all sets of the caches.
 */
#define ML_MEMOS 512u /* of one thread; power of two */
#define ML_MEMO_OFFSETS 188u

struct ml_memo {
	ml_u64 return_address; /* 0 = empty */
	ml_u64 stack_pointer;
	ml_u64 frame_pointer;
	ml_u64 words; /* hash of the words at the offsets */
	ml_u64 python; /* of the frames in Python; 0 = none */
	ml_u64 key;
	ml_u32 key_number;
	ml_u32 revision;       /* of the code map */
	ml_u32 rules_revision; /* of the frame rules, if some were missing */
	ml_u16 n_offsets;
	ml_u8 uses_fp;  /* the frame pointer register was used, not only the stack */
	ml_u8 is_exact; /* walked to the outermost frame: more rules would not change the key */
	ml_u32 reach_bytes; /* from the stack pointer to the end of the last word */
	ml_u32 signature;   /* of the words at its outline's offsets */
	ml_u16 offsets[ML_MEMO_OFFSETS]; /* in words from the stack pointer */
};

enum ml_ring_kind {
	ML_RING_PAD = 1,      /* skip to the ring's start */
	ML_RING_EVIDENCE = 2, /* struct ml_ring_evidence */
	ML_RING_MAPS = 3,     /* struct ml_maps and a piece of the text; argument: 1 = the last piece */
	ML_RING_EVENT = 4,    /* struct ml_event */
	ML_RING_PYTHON_CODE = 5, /* struct ml_python_code */
};

#define ML_RING_ARGUMENT_SHIFT 8 /* of ml_ring_record.kind */

struct ml_ring_record {
	ml_u32 bytes; /* includes this header; multiple of 8 */
	ml_u32 kind;  /* enum ml_ring_kind | argument << ML_RING_ARGUMENT_SHIFT */
};

/*
 * stack_hash covers every word of the slice that may be a return address, its offset, and the stack's depth. Records of
 * one key with equal hashes are of the same stack, so one of them is enough.
 */
struct ml_ring_evidence {
	ml_u64 stack_hash;
	struct ml_evidence record; /* followed by its registers and stack bytes */
};

/* ---- keys -------------------------------------------------------------------------------------------- */

/* Bits of a key. */
#define ML_KEY_SAW_PART 1u /* does not cover the whole stack (ML_KEY_PARTIAL) */
#define ML_KEY_IS_EXACT 2u /* made of all return addresses and nothing else: one key, one stack */

/* A stack key. Entry 0 counts blocks that found no room for a key. */
struct ml_key {
	ml_u64 key; /* 0 = the entry was never finished */
	ml_u64 alloc_objects;
	ml_u64 alloc_bytes;
	ml_u64 free_objects;
	ml_u64 free_bytes;
	ml_u64 next_due;    /* number of live blocks at which evidence is due */
	ml_u64 next_verify; /* … number of allocations */
	ml_u64 sent_stack;  /* struct ml_ring_evidence.stack_hash of the last evidence */
};

/*
 * The slots of the index where a key's entry may be, ML_KEY_PROBES of them. The first are near each other for all keys,
 * so that a program with some thousand stacks does not touch a page for each.
 */
#define ML_KEY_NEAR (1u << 15)
#define ML_KEY_NEAR_PROBES 16u
#define ML_KEY_PROBES (ML_KEY_NEAR_PROBES + 64u)

static inline ml_u32 ml_key_near(const struct ml_settings *settings)
{
	return 2 * settings->n_keys < ML_KEY_NEAR ? 2 * settings->n_keys : ML_KEY_NEAR;
}

static inline ml_u32 ml_key_slot(const struct ml_settings *settings, ml_u64 key, ml_u32 i)
{
	ml_u32 near = ml_key_near(settings), from = (ml_u32)(key >> 32) + i;

	return i < ML_KEY_NEAR_PROBES ? from & (near - 1) : near + (from & (2 * settings->n_keys - 1));
}

/* A sequence number is unique in the session: process, number in the process. */
#define ML_SEQUENCE_NUMBER_BITS 41
#define ML_SEQUENCE_NUMBER_MASK ((1ull << ML_SEQUENCE_NUMBER_BITS) - 1)
#define ML_SEQUENCE_PROCESSES (1u << 22) /* below 2^63 together */

/* ---- the live table ---------------------------------------------------------------------------------- */

#define ML_BUCKET_SLOTS 8u
#define ML_SLOT_CLAIMED 1u

/* A block, as passed to and from the table. */
struct ml_entry {
	ml_u64 size;
	ml_u64 timestamp_ns;
	ml_u64 sequence;
	ml_u32 key_index;
	ml_u32 tid;
	ml_u32 function; /* enum ml_function */
	ml_u32 session; /* struct ml_view's, when it was claimed */
};

/*
 * 256 KiB of the heap in shadow.h. A word is 0 if no block begins there. Else it has what a free needs (size, key,
 * exact address) and what a snapshot needs: the rest's index and the block's number in it.
 */
#define ML_SHADOW_CHUNK_SHIFT 18
#define ML_SHADOW_GRANULES 8192u

struct ml_shadow_chunk {
	ml_u64 words[ML_SHADOW_GRANULES];
};

/* Shared by the blocks 1 … n. */
struct ml_shadow_rest {
	ml_u64 time_function; /* ns since the segment's start_ns | function << ML_SHADOW_FUNCTION_SHIFT */
	ml_u64 sequence_tid;  /* as in struct ml_slot; that of block n is this + n */
	ml_u64 n_live; /* includes blocks still to come, and 1 while open; in a free rest: index of the next free one, plus 1 */
};

#define ML_SHADOW_TURN_BITS 6
#define ML_SHADOW_REST_BLOCKS ((1u << ML_SHADOW_TURN_BITS) - 1)
#define ML_SHADOW_RESTS_MAX (1u << 22)

static inline ml_u32 ml_shadow_n_rests(const struct ml_settings *settings)
{
	if (!settings->n_chunks)
		return 0;
	return settings->max_live < ML_SHADOW_RESTS_MAX ? (ml_u32)settings->max_live : ML_SHADOW_RESTS_MAX;
}

/*
 * A block in the hashed half of the table (table.c). The fields are as wide as their values: no block has 2^56 bytes,
 * the key is an index below n_keys, PID_MAX_LIMIT is 2^22.
 */
struct ml_slot {
	ml_u64 address; /* 0 = free, ML_SLOT_CLAIMED = being written; written after the other fields */
	ml_u64 size_function; /* size | function << ML_SLOT_SIZE_BITS */
	ml_u64 time_key; /* ticks since the segment's start_ns | key_index << ML_SLOT_TIME_BITS */
	ml_u64 sequence_tid; /* number in the process | tid << ML_SEQUENCE_NUMBER_BITS */
};

/*
 * Number of live blocks by hash of the address. With sampling most frees are of other blocks, which this shows fast. A
 * count of 255 is never changed.
 */
#define ML_FILTER_COUNTS (1u << 16)
#define ML_FILTER_STUCK 255u

static inline ml_u32 ml_filter_slot(ml_u64 address)
{
	return (ml_u32)((address >> 4) * 0x9e3779b97f4a7c15ull >> 48);
}

#define ML_SLOT_SIZE_BITS 56
#define ML_SLOT_TIME_BITS 44
#define ML_TICK_SHIFT 12 /* 4.096 µs; 2^44 ticks are more than two years */
#define ML_KEY_NUMBERS_MAX (1u << 20)

/* Rounded up, so that no block of a map precedes it. */
static inline ml_u64 ml_tick_after(ml_u64 timestamp_ns)
{
	return (timestamp_ns + (1u << ML_TICK_SHIFT) - 1) >> ML_TICK_SHIFT << ML_TICK_SHIFT;
}

static inline ml_u64 ml_ticks(ml_u64 start_ns, ml_u64 timestamp_ns)
{
	ml_u64 since = timestamp_ns > start_ns ? timestamp_ns - start_ns : 0;

	return since >> ML_TICK_SHIFT & ((1ull << ML_SLOT_TIME_BITS) - 1);
}

#define ML_HOOKED_MAX 4096u /* rows of struct ml_hooked, which are never removed */

/* ---- the head ---------------------------------------------------------------------------------------- */

struct ml_segment {
	ml_u64 magic;
	ml_u32 wire_version;
	ml_u32 pid;
	ml_u32 session_index;
	ml_u32 current_map; /* the current code map: 0 or 1 */
	ml_u32 n_levels_open;
	ml_u32 n_keys_used;
	ml_u32 maps_dirty; /* enum ml_maps_state */
	ml_u32 rules_revision; /* changes when frame rules are added */
	ml_u32 n_leaving; /* threads inside exec; if not 0, an ended process has become another program */
	ml_u32 is_over; /* enum ml_over; next to other fields that every call reads */
	ml_u64 next_check_ns; /* when to check whether the agent is there */
	ml_u64 next_sequence_range; /* see thread.h */
	ml_u64 start_ns; /* a multiple of a tick */
	ml_u64 n_hashed; /* blocks in the hashed half of the table */
	ml_u64 n_shadowed; /* blocks in shadow memory, with those that open rests may take and those whose free is pending */
	ml_u64 n_rests_used; /* the first unused index */
	ml_u64 free_rests; /* the first free one's index plus 1 | count of changes << 32 */
	struct ml_settings settings;
	ml_u64 lost[ML_LOST_MAX];
	ml_u64 n_sharing; /* calls of threads that found no slot of their own */
	ml_u64 agent_alive_ns; /* updated by the agent; 0 = never */
	ml_u32 n_hooked; /* complete rows of struct ml_hooked */
	ml_u32 n_hooked_lost; /* rows without room */
	ml_u64 forbidden_calls; /* bits of enum ml_own_call, by the process's sandbox */
	ml_u64 python_objects; /* enum ml_python_objects */
	ml_u64 n_python_codes; /* numbers given */
	struct ml_unseen_loads loads;
	struct ml_peak_state peak;
};

static inline ml_u64 ml_sequence_unpack(const struct ml_segment *segment, ml_u64 sequence_tid)
{
	ml_u64 number = sequence_tid & ML_SEQUENCE_NUMBER_MASK;

	return number ? (ml_u64)segment->session_index << ML_SEQUENCE_NUMBER_BITS | number : 0;
}

/* The slot may change meanwhile. Readers of another thread's check its address before and after. */
static inline struct ml_entry ml_slot_unpack(const struct ml_segment *segment, const volatile struct ml_slot *slot)
{
	ml_u64 size_function = ml_read(&slot->size_function), time_key = ml_read(&slot->time_key),
	       sequence_tid = ml_read(&slot->sequence_tid);

	return (struct ml_entry){
		.size = size_function & ((1ull << ML_SLOT_SIZE_BITS) - 1),
		.timestamp_ns = segment->start_ns + ((time_key & ((1ull << ML_SLOT_TIME_BITS) - 1)) << ML_TICK_SHIFT),
		.sequence = ml_sequence_unpack(segment, sequence_tid),
		.key_index = (ml_u32)(time_key >> ML_SLOT_TIME_BITS),
		.tid = (ml_u32)(sequence_tid >> ML_SEQUENCE_NUMBER_BITS),
		.function = (ml_u32)(size_function >> ML_SLOT_SIZE_BITS),
	};
}

ML_ASSERT_SIZE(struct ml_key, 64);
ML_ASSERT_SIZE(struct ml_memo, 448);
ML_ASSERT_SIZE(struct ml_slot, 32);
ML_ASSERT_SIZE(struct ml_shadow_chunk, 65536);
ML_ASSERT_SIZE(struct ml_shadow_rest, 24);
ML_ASSERT_SIZE(struct ml_ring_record, 8);

#define ML_TABLE_LEVELS 16

/* A process's view of a mapped segment. */
struct ml_view {
	struct ml_segment *segment;
	struct ml_code_map *code_maps; /* two */
	struct ml_frame_rule *rules; /* ML_FRAME_RULES */
	ml_u64 *owners; /* n_threads */
	struct ml_thread *threads;
	struct ml_memo *memos; /* ML_MEMOS of each thread */
	ml_u32 *key_index; /* near ones, then 2 * n_keys: index of an entry, 0 = empty */
	struct ml_key *keys;
	ml_u64 *peaks; /* n_keys, see parts.h */
	ml_u8 *filter; /* ML_FILTER_COUNTS */
	ml_u64 *chunk_numbers; /* n_chunks: address >> ML_SHADOW_CHUNK_SHIFT, plus 1 */
	struct ml_shadow_chunk *chunks;
	struct ml_shadow_rest *rests; /* ml_shadow_n_rests() */
	struct ml_slot *level_slots[ML_TABLE_LEVELS];
	ml_u64 *level_displaced[ML_TABLE_LEVELS]; /* a bit for each pair of buckets, see table.c */
	ml_u32 n_levels;
	ml_u32 first_level_bits; /* log2 of the buckets of level 0; each further level has four times as many */
	unsigned char *rings; /* see ml_view_ring() */
	struct ml_hooked *hooked; /* ML_HOOKED_MAX */
	struct ml_pair_table *pairs;
	struct ml_python_slot *python_slots; /* 1 << ML_PYTHON_SLOT_BITS */
	struct ml_children *children;
	ml_u64 bytes; /* of the segment */
	ml_u32 n_near, far_ring_bytes; /* slots with large rings, a power of two, and the others' */
	struct ml_settings settings; /* a private copy */
	ml_u32 session; /* number of the session in this process, from 1 */
};

/* The segment but for its last part. */
static inline ml_u64 ml_view_unshared_bytes(const struct ml_view *view)
{
	return (ml_u64)((unsigned long)view->children - (unsigned long)view->segment);
}

/* The current one. */
static inline const struct ml_code_map *ml_view_code_map(const struct ml_view *view)
{
	return &view->code_maps[__atomic_load_n(&view->segment->current_map, __ATOMIC_ACQUIRE) & 1];
}

static inline ml_u32 ml_view_level_bits(const struct ml_view *view, ml_u32 level)
{
	return view->first_level_bits + 2 * level;
}

/* Points the view to a segment at `base`; NULL: to learn its size. Returns -1 if the settings are out of bounds. */
int ml_view_set(struct ml_view *view, void *base, const struct ml_settings *settings);

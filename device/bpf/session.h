/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/* Structures that the BPF tracer and the agent share in maps; never sent to the host. */
#pragma once

#include "frame_rule.h"
#include "pair_rule.h"
#include "wire.h"

/* Where a probed function stands in its file: from one of its addresses follow all the others. */
struct ml_bpf_function {
	ml_u64 entry_offset;
	ml_u64 text_low; /* of the allocator's executable segment */
	ml_u64 text_high;
};

/* Files of allocators that are probed in one session: several only where it is of every process. A power of two. */
#define ML_BPF_FILES 16
#define ML_BPF_FILE_SHIFT 8 /* of its number in a probe's cookie, above that of the function */

/* Of which stacks no evidence is sent. */
enum ml_bpf_left_out {
	ML_BPF_NONE_LEFT_OUT,
	ML_BPF_KNOWN_LEFT_OUT, /* all but those that run into unknown places, for the agent to learn from */
	ML_BPF_COLD_LEFT_OUT,  /* exact keys that hold little: see ml_is_cold() */
	ML_BPF_SHARED_LEFT_OUT, /* of every process: see ml_is_left_out_of_everybody() */
};

/* Read-only data of the BPF object, alone in its section, set before load. */
#define ML_BPF_OPTIONS_SECTION ".rodata.options"

struct ml_bpf_options {
	ml_u32 follow;         /* many processes: look each one up */
	ml_u32 is_system_wide;   /* every process is traced from its first call on, but for: */
	ml_u32 tracer_tgid;      /* who measures; 0 = nobody */
	ml_u32 n_files;        /* where there are several, probes carry the number of theirs as a cookie */
	ml_u32 stack_bytes;    /* cap on a slice; 0 = account only, no evidence */
	ml_u32 every_stack;    /* no deduplication */
	ml_u32 whole_stacks;   /* slices, never only the words that a walk has read */
	ml_u32 events;         /* stream every call */
	ml_u32 buckets_shift;  /* of level 0 of the live table */
	ml_u64 min_size;
	ml_u64 max_size;
	ml_u64 code_mask; /* what of a saved return address is an address */
	ml_u64 ring_bytes;
	ml_u64 quiet_flags;  /* of a record in the ring: nobody is woken. Runtimes in user space take 0 alone */
	ml_u64 wakeup_flags; /* the agent waits for it */
	/* Offsets in tracepoints' events: */
	ml_u32 fork_pid;   /* task_newtask */
	ml_u32 fork_flags;
	ml_u32 sees_mappings; /* 1: sys_enter_mmap, sys_enter_munmap and those of exec are attached */
	ml_u32 munmap_addr;
	ml_u32 munmap_len;
	ml_u32 mmap_addr;
	ml_u32 mmap_len;
	ml_u32 mmap_prot;
	ml_u32 mmap_flags;
	ml_u32 left_out;   /* enum ml_bpf_left_out */
	ml_u32 n_pairs;
	ml_u32 extend_stacks; /* stacks longer than their slices are told apart, so that the agent can read the rest */
	struct ml_bpf_function functions[ML_BPF_FILES][ML_FN_MAX];
	struct ml_pair rules[ML_FN_MAX];
};

/*
 * Live table: levels of buckets, each level a mappable array of its own with twice the buckets of the one
 * before; the agent adds the next as they fill. A block stands in one of ML_BPF_BUCKET_PROBES buckets of any
 * level, from its home bucket on; `overflowed` says that looking further is worth while. A block that finds
 * no place there, because the agent was kept from running, goes into an overflow map.
 */
#define ML_BPF_LEVELS 12
/* Level n has 2^(options.buckets_shift + n) buckets. */
#define ML_BPF_BUCKETS_SHIFT_MIN 7
#define ML_BPF_BUCKETS_SHIFT_MAX 14
#define ML_BPF_BUCKET_PROBES 4
#define ML_BPF_BUCKET_SLOTS 8

struct ml_bpf_address {
	ml_u64 address;
	ml_u64 process;
};

struct ml_bpf_block {
	ml_u64 process; /* exec epoch << 32 | tgid */
	ml_u64 size;
	ml_u64 timestamp_ns;
	ml_u64 sequence;     /* tid << 40 | a number that grows with each call of the thread */
	ml_u32 key_slot;     /* index into the key table; ML_BPF_NO_KEY */
	ml_u32 function;
};

/* Addresses stand together: looking for one touches one cache line. 0 = free, ML_BPF_BUSY = being written. */
struct ml_bpf_bucket {
	ml_u64 address[ML_BPF_BUCKET_SLOTS];
	struct ml_bpf_block block[ML_BPF_BUCKET_SLOTS];
	ml_u64 overflowed;
};

#define ML_BPF_BUSY 1ull
#define ML_BPF_SEQUENCE_SHIFT 40

static inline __attribute__((always_inline)) ml_u32 ml_bpf_home(ml_u64 address)
{
	return (ml_u32)((address >> 4) * 0x9e3779b97f4a7c15ull >> 32);
}

/* Threads: a table of ML_BPF_THREADS, open addressing over ML_BPF_THREAD_PROBES slots. */
#define ML_BPF_THREADS (1u << 13)
#define ML_BPF_THREAD_PROBES 16

#define ML_BPF_NO_KEY 0xffffffffu

/* Key table: a mappable array, open addressing, ML_BPF_KEY_PROBES slots from key & mask on. */
#define ML_BPF_KEY_SLOTS (1u << 18)
#define ML_BPF_KEY_PROBES 16

/* Bits of its flags that are ours alone, beside enum ml_key_flag. */
#define ML_BPF_KEY_EXACT (1ull << 32) /* all return addresses, by rules, and nothing else */
#define ML_BPF_KEY_HOT (1ull << 33)   /* set and taken back by the agent (hot_keys.h) */

struct ml_bpf_key {
	ml_u64 key; /* 0 = free */
	ml_u64 alloc_objects;
	ml_u64 alloc_bytes;
	ml_u64 free_objects;
	ml_u64 free_bytes;
	ml_u64 next_due; /* evidence is due when this many blocks are live; the agent writes 0 to ask again */
	ml_u64 process;
	ml_u64 flags; /* enum ml_key_flag, ML_BPF_KEY_… */
};

/*
 * Who held what when most was held, of one process (not with `follow`, nor of everybody). For each slot of the key table a word: what
 * it held at a mark | the mark's generation << ML_BPF_PEAK_BYTES_BITS. Written at the key's first change after the mark.
 */
#define ML_BPF_PEAK_BYTES_BITS 48
#define ML_BPF_PEAK_BYTES_MASK ((1ull << ML_BPF_PEAK_BYTES_BITS) - 1)
#define ML_BPF_PEAK_GENERATION_MAX 0xffffull /* from 1 KiB to 2^48 bytes are 28,000 steps */
#define ML_BPF_PEAK_STEP_SHIFT 10 /* a new mark lies more than this part above the last one */

struct ml_bpf_peak {
	ml_u64 generation; /* counts the marks; 0: none are kept */
	ml_u64 mark;       /* the highest total so far, raised in steps */
	ml_u64 timestamp_ns;
	ml_u64 total;      /* bytes held; signed */
};

/*
 * Executable memory in granules of 64 KiB, hashed to one bit each: a stack word whose bit is set may be a
 * return address. A wrong bit only splits keys. high_bytes: the low byte of an address's upper half, a
 * quick first test.
 */
#define ML_BPF_GRANULE_SHIFT 16
#define ML_BPF_GRANULE_BITS 16

struct ml_bpf_code {
	ml_u64 n_levels;    /* of the live table */
	ml_u64 process;     /* the one that is traced, when it is one: exec epoch << 32 | tgid; what shares its memory counts as it */
	ml_u64 images_changed; /* counts: an image number that a thread remembers may be old */
	ml_u64 wants_wakeup; /* set by the agent while it learns rules: it wants to hear of unknown places at once */
	ml_u64 generation;  /* part of every image number: the agent counts code that came unseen by the programs */
	ml_u64 has_overflow; /* set by the programs: blocks stand in the overflow map too */
	ml_u64 is_over;     /* set by the agent before it takes the probes away, which do not go all at once: no call counts any more */
	ml_u64 hot_bytes;   /* set by the agent: a key that holds as much is hot at once */
	ml_u8 high_bytes[256];
	ml_u8 granules[(1u << ML_BPF_GRANULE_BITS) / 8];
	ml_u64 verifying_sent;  /* bytes of evidence that only verifies keys, about */
	ml_u64 verifying_taken; /* of them, out of the ring again: by the agent */
	ml_u64 drains;      /* set by the agent: counts how often it has emptied the ring */
	ml_u64 highest_handle; /* of all that are 4 bytes wide: where a range that is released ends at the latest */
};

static inline __attribute__((always_inline)) ml_u32 ml_bpf_granule(ml_u64 address)
{
	ml_u32 granule = (ml_u32)(address >> ML_BPF_GRANULE_SHIFT);

	return (granule * 0x9e3779b1u) >> (32 - ML_BPF_GRANULE_BITS);
}

/* May there be code? A quick look, which may be wrong in saying yes. address: without tags and signatures. */
static inline __attribute__((always_inline)) int ml_bpf_may_be_code(const struct ml_bpf_code *code, ml_u64 address)
{
	ml_u32 granule = ml_bpf_granule(address);

	return code->high_bytes[address >> 32 & 0xff] &&
	       code->granules[granule >> 3 & (sizeof(code->granules) - 1)] >> (granule & 7) & 1;
}

/*
 * Of a stack that its slice does not hold (options.extend_stacks), sent before the evidence: digests of the words from
 * `begin` on that may lead from frame to frame, and of where they stand. The agent reads the stack again: where a digest is
 * the same, so are its words, and the frames. begin … begin + bytes - 1 begins in the slice: that the seam is the same
 * shows that nobody has returned there.
 */
struct ml_bpf_above {
	ml_u64 sequence; /* of the evidence */
	ml_u64 begin;
	ml_u64 end;
	ml_u64 bytes; /* that the digests cover */
	ml_u64 leading; /* digest of words that point to code as far as it is known, or to begin … end - 1 */
	ml_u64 pointers; /* of all that could: for stacks that run through code which the agent learns of only then */
};

/* Calls in progress on a thread; heap calls nest two or three deep, signal handlers and allocators' hooks add levels. */
#define ML_PENDING 16

/*
 * Where more calls are pending than evidence has fixups for: all of them, the innermost first, sent before the evidence.
 */
struct ml_bpf_returns {
	ml_u64 sequence; /* of the evidence */
	ml_u64 n;
	struct ml_fixup fixups[ML_PENDING];
};

#define ML_BPF_ABOVE_SEAM 64u     /* of the slice, at least */
#define ML_BPF_ABOVE_WINDOW 1024u /* that is looked at in one go; a power of two, none straddles a page */

/* May the word lead to another frame? address: the word without tags and signatures. */
static inline __attribute__((always_inline)) int ml_bpf_is_pointer(ml_u64 address)
{
	return address - (1ull << 16) < 1ull << 56; /* vm.mmap_min_addr; TASK_SIZE with five levels of page tables */
}

static inline __attribute__((always_inline)) int ml_bpf_is_leading(const struct ml_bpf_above *above, const struct ml_bpf_code *code,
								   ml_u64 word, ml_u64 address)
{
	return word - above->begin < above->end - above->begin || ml_bpf_may_be_code(code, address);
}

static inline __attribute__((always_inline)) ml_u64 ml_bpf_above_mix(ml_u64 digest, ml_u64 offset, ml_u64 word)
{
	digest = (digest ^ offset) * 0x9e3779b97f4a7c15ull;
	digest = (digest ^ digest >> 29 ^ word) * 0xd6e8feb86659fd93ull;
	return digest ^ digest >> 32;
}

/* Code in 64 KiB of address space: bytes low … high - 1 of it. Two pieces of code are taken for one. */
struct ml_bpf_span {
	ml_u32 low;
	ml_u32 high;
};

/*
 * A traced process. Its image numbers a history of its code: two times or processes that have other code at one
 * address have other numbers. A child has its parent's number until it maps or unmaps code; the parent, who handed it
 * on, may map code under it (the child never had any there), and whoever unmaps code takes a new number.
 */
struct ml_bpf_process {
	ml_u32 epoch; /* counts exec; where everybody is traced no two programs have the same, and later ones have higher */
	ml_u32 is_borrowed; /* the image number is the parent's */
	ml_u64 image;
	ml_u64 drains; /* of every process: when the bytes that it sent were counted last, */
	ml_u64 sent;   /* and how many it has sent since */
};

#define ML_BPF_FIRST_IMAGE 1ull
#define ML_BPF_GENERATION_SHIFT 40

/* Rules to walk by (frame_rule.h): a mappable array whose values are sets. */
struct ml_bpf_rule_set {
	struct ml_frame_rule rules[ML_FRAME_SET_RULES];
};

/*
 * Behind the registers of a record with ML_EVIDENCE_STACK_SPARSE: u64 n_words, u64 words[room], u16 places[room]. A ring
 * takes records of sizes known beforehand: the room follows from the size. The places count in words from stack_address.
 */
#define ML_BPF_WORDS_MAX 128
#define ML_BPF_OFFSET_OF_ADDRESS 0x8000u /* beside a place: the word is an address of the stack, not of code */

/* Counters beside enum ml_lost, one row per CPU. */
enum ml_bpf_counter {
	ML_BPF_UNTRACKED_FREES = ML_LOST_MAX,
	ML_BPF_COUNTERS,
};

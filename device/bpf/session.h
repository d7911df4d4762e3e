/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/*
 * The BPF tracer: probes of the allocator come in; live blocks, counters by stack key, and evidence go out. This
 * header: the structures in maps shared with the agent, never sent to the host.
 */
#pragma once

#include "frame_rule.h"
#include "pair_rule.h"
#include "wire.h"

/* Where a probed function is in its file: with one of its addresses, all others follow. */
struct ml_bpf_function {
	ml_u64 entry_offset;
	ml_u64 text_low; /* of the allocator's executable segment */
	ml_u64 text_high;
};

/* Probed files of allocators; several with --all only. A power of two. */
#define ML_BPF_FILES 16
#define ML_BPF_FILE_SHIFT 8 /* of its index in a probe's cookie, above the function */

/* old_address of an event of SBRK, whose address is the new break: it was asked for, or moved for the heap. */
#define ML_BREAK_IS_NO_REGION 1u

/* Stacks without evidence. */
enum ml_bpf_left_out {
	ML_BPF_NONE_LEFT_OUT,
	ML_BPF_KNOWN_LEFT_OUT, /* all but those with unknown rules, from which the agent learns */
	ML_BPF_SHARED_LEFT_OUT, /* with --all: see ml_is_left_out_system_wide() */
};

/* Read-only data of the BPF object in its own section, set before loading. */
#define ML_BPF_OPTIONS_SECTION ".rodata.options"

struct ml_bpf_options {
	ml_u32 follow;         /* several processes, each in the map */
	ml_u32 is_system_wide;   /* every process is traced from its first call, except: */
	ml_u32 tracer_tgid;      /* the host; 0 = none */
	ml_u32 n_files;        /* if several, a probe's cookie has the index of its file */
	ml_u32 stack_bytes;    /* maximum of a slice; 0 = no evidence */
	ml_u32 every_stack;    /* no deduplication */
	ml_u32 whole_stacks;   /* whole slices, never only the words of a walk */
	ml_u32 events;         /* send every call */
	ml_u32 buckets_shift;  /* of level 0 of the live table */
	ml_u64 min_size;
	ml_u64 max_size;
	ml_u64 signature_mask; /* signature.h */
	ml_u64 ring_bytes;
	ml_u64 quiet_flags;  /* of a record in the ring that wakes up no reader. Runtimes in user space accept 0 only */
	ml_u64 wakeup_flags; /* of a record for which the agent waits */
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
	ml_u32 syscall_ret; /* of every syscalls/sys_exit_… */
	ml_u32 left_out;   /* enum ml_bpf_left_out */
	ml_u32 n_pairs;
	ml_u32 n_exited; /* rules with exits; 0: the verifier leaves out what serves them */
	ml_u32 reach_bytes; /* of a stack longer than its slice, so much is sent, page by page */
	ml_u32 walk_bytes;     /* beyond, no walk by rules goes; at most ML_BPF_WALK_BYTES */
	ml_u32 finds_mappings; /* the kernel has bpf_find_vma() */
	ml_u32 alternate_stack; /* offset of sas_ss_sp in the kernel's task_struct, before sas_ss_size; 0 = unknown */
	struct ml_bpf_function functions[ML_BPF_FILES][ML_FN_MAX];
	struct ml_pair rules[ML_FN_MAX];
};

/*
 * Live table: levels of buckets, each a mappable array with twice the buckets of the one before. The agent adds levels
 * as they fill. A block is in one of ML_BPF_BUCKET_PROBES buckets of any level, from its home bucket on; `overflowed`
 * means that more buckets must be searched. Blocks without room, because the agent did not run, go into an overflow
 * map.
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

/* Addresses are together, so that a search touches one cache line. 0 = free, ML_BPF_BUSY = being written. */
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

/* Threads: a table with open addressing over ML_BPF_THREAD_PROBES slots. */
#define ML_BPF_THREADS (1u << 13)
#define ML_BPF_THREAD_PROBES 16

#define ML_BPF_NO_KEY 0xffffffffu

/* Key table: a mappable array with open addressing over ML_BPF_KEY_PROBES slots from key & mask on. */
#define ML_BPF_KEY_SLOTS (1u << 18)
#define ML_BPF_KEY_PROBES 16

/* Used only here and by the agent, beside enum ml_key_flag. Fits an immediate: a mask of 64 bits is loaded by two instructions. */
#define ML_BPF_KEY_EXACT (1u << 30) /* all return addresses, by rules, and nothing else */

struct ml_bpf_key {
	ml_u64 key; /* 0 = free */
	ml_u64 alloc_objects;
	ml_u64 alloc_bytes;
	ml_u64 free_objects;
	ml_u64 free_bytes;
	ml_u64 next_due; /* number of live blocks at which evidence is due; the agent writes 0 to request it */
	ml_u64 process;
	ml_u64 flags; /* enum ml_key_flag, ML_BPF_KEY_… */
};

/*
 * The bytes of each key at the high-water mark of one process (not with `follow` or --all). One word for each slot of
 * the key table: bytes at a mark | the mark's generation << ML_BPF_PEAK_BYTES_BITS. Written at the key's first change
 * after the mark.
 */
#define ML_BPF_PEAK_BYTES_BITS 48
#define ML_BPF_PEAK_BYTES_MASK ((1ull << ML_BPF_PEAK_BYTES_BITS) - 1)
#define ML_BPF_PEAK_GENERATION_MAX 0xffffull /* from 1 KiB to 2^48 bytes are 28,000 steps */
#define ML_BPF_PEAK_STEP_SHIFT 10 /* a new mark exceeds the last by more than 1/1024 */

struct ml_bpf_peak {
	ml_u64 generation; /* counts the marks; 0: none are kept */
	ml_u64 mark;       /* the highest total so far, raised in steps */
	ml_u64 timestamp_ns;
	ml_u64 total;      /* bytes held; signed */
};

/*
 * Executable memory in granules of 64 KiB, hashed to one bit each. A stack word whose bit is set may be a return
 * address; a wrong bit only splits keys. high_bytes: a quick first test of the low byte of an address's upper half.
 */
#define ML_BPF_GRANULE_SHIFT 16
#define ML_BPF_GRANULE_BITS 16

struct ml_bpf_code {
	ml_u64 n_levels;    /* of the live table */
	ml_u64 process; /* the traced process, if there is one: exec epoch << 32 | tgid; processes that share its memory count as it */
	ml_u64 images_changed; /* counter; a thread's image number may be old */
	ml_u64 wants_wakeup; /* set by the agent while it learns rules: it wants unknown addresses at once */
	ml_u64 generation; /* part of every image number: counts code changes that the programs could not see */
	ml_u64 has_overflow; /* set by the programs: the overflow map has blocks */
	ml_u64 is_attached; /* set by the agent once all probes are placed in what ran before: calls may be on their way */
	ml_u64 over_ns; /* set by the agent before it removes the probes one by one: calls no longer count */
	ml_u8 high_bytes[256];
	ml_u8 granules[(1u << ML_BPF_GRANULE_BITS) / 8];
	ml_u64 verifying_sent; /* about: bytes of evidence that only verifies keys */
	ml_u64 verifying_taken; /* those that the agent has drained */
	ml_u64 drains; /* set by the agent: how often it has drained the ring */
	ml_u64 highest_handle; /* of 4-byte handles: the end of any released range */
};

static inline __attribute__((always_inline)) ml_u32 ml_bpf_granule(ml_u64 address)
{
	ml_u32 granule = (ml_u32)(address >> ML_BPF_GRANULE_SHIFT);

	return (granule * 0x9e3779b1u) >> (32 - ML_BPF_GRANULE_BITS);
}

/* A quick test with false positives. address: without tags and signatures. */
static inline __attribute__((always_inline)) int ml_bpf_may_be_code(const struct ml_bpf_code *code, ml_u64 address)
{
	ml_u32 granule = ml_bpf_granule(address);

	return code->high_bytes[address >> 32 & 0xff] &&
	       code->granules[granule >> 3 & (sizeof(code->granules) - 1)] >> (granule & 7) & 1;
}

/* A mapping: low … end - 1. */
struct ml_bpf_bounds {
	ml_u64 low;
	ml_u64 end;
};

/*
 * Evidence of a stack that is longer than a slice, or of which not every page is present. Behind the registers follow
 * struct ml_bpf_pages, then whole pages from that of stack_address on. Pages that are not present
 * have undefined content.
 */
#define ML_BPF_EVIDENCE_PAGED 0x8000u /* among enum ml_evidence_flag */
/*
 * Sent before the evidence of the same sequence number, if that has ML_EVIDENCE_INTERRUPTED: a record of pages of the stack that
 * its signal handler has interrupted. Of the registers it has the stack and frame pointers and, as a return address, pc + 1.
 */
#define ML_BPF_EVIDENCE_INTERRUPTED 0x4000u
#define ML_BPF_PAGE_BYTES 4096u
#define ML_BPF_PAGES_MAX (ML_ABOVE_BYTES_MAX / ML_BPF_PAGE_BYTES + 1)

struct ml_bpf_pages {
	ml_u8 is_present[(ML_BPF_PAGES_MAX + 7) & ~7u];
};

/*
 * Calls in progress on a thread. Heap calls nest two or three deep; signal handlers and allocators' hooks add levels.
 */
#define ML_PENDING 16

/* All pending calls, the innermost first, sent before evidence that has fewer fixups. */
struct ml_bpf_returns {
	ml_u64 sequence; /* of the evidence */
	ml_u64 n;
	struct ml_fixup fixups[ML_PENDING];
};

/* Code in 64 KiB of address space: bytes low … high - 1. Two pieces of code count as one. */
struct ml_bpf_span {
	ml_u32 low;
	ml_u32 high;
};

/*
 * A traced process. Its image numbers the history of its code: times or processes with different code at an address
 * have different numbers. A child keeps its parent's number until it maps or unmaps code. A parent may map code under a
 * number it shares, because the child never had any there; unmapping takes a new number.
 */
struct ml_bpf_process {
	ml_u32 epoch; /* counts exec; with --all no two programs have the same, and later ones are higher */
	ml_u32 is_borrowed; /* the image number is the parent's */
	ml_u32 lender; /* tgid of the process in whose memory this one runs, a child of vfork() or CLONE_VM; 0: in its own */
	ml_u32 is_nested; /* such a child's child */
	ml_u32 has_ended, padding; /* its number is another process's, which is not traced */
	ml_u64 image;
	ml_u64 drains; /* with --all: the drain count when `sent` began, */
	ml_u64 sent; /* and the bytes sent since */
};

#define ML_BPF_FIRST_IMAGE 1ull
#define ML_BPF_GENERATION_SHIFT 40

/* Frame rules (frame_rule.h): a mappable array of sets. */
struct ml_bpf_rule_set {
	struct ml_frame_rule rules[ML_FRAME_SET_RULES];
};

/*
 * Behind the registers of a record with ML_EVIDENCE_STACK_SPARSE: u64 n_words, u64 words[room], u16 offsets[room].
 * Record sizes are constants, and the room follows from the size. Offsets count in words from stack_address.
 */
#define ML_BPF_WORDS_MAX 128
#define ML_BPF_OFFSET_OF_ADDRESS 0x8000u /* in an offset: the word is a stack address, not a code address */
#define ML_BPF_WALK_BYTES ((ML_BPF_OFFSET_OF_ADDRESS - 1) * 8)

/* Counters beside enum ml_lost, one row per CPU. */
enum ml_bpf_counter {
	ML_BPF_UNTRACKED_FREES = ML_LOST_MAX,
	ML_BPF_BORROWERS, /* processes that ended and had run in another's memory only */
	ML_BPF_BORROWING_CHILDREN, /* those of them that are not nested */
	ML_BPF_CHILDREN_OF_BORROWERS, /* that run in memory of their own */
	ML_BPF_COUNTERS,
};

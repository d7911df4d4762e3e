/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps and the state of a thread. */
#pragma once

#include "bpf/define_map.bpf.h"
#include "session.h"

const volatile struct ml_bpf_options options SEC(ML_BPF_OPTIONS_SECTION) = { .stack_bytes = ML_STACK_BYTES_MAX };

#include "registers.bpf.h"

#define ML_PAGE_BYTES 4096ull
/* Granules around a caller that are taken for code. */
#define ML_CODE_AROUND 16
/* Stack words read at a time for a key. A power of two. */
#define ML_KEY_WORDS 64
#define ML_KEY_BYTES (8ull * ML_KEY_WORDS)
/* Stack words read at a time by a walk, at most (a power of two) and at least. */
#define ML_WINDOW_WORDS 256
#define ML_WINDOW_LEAST 256
/* Stack words copied to compare with remembered walks, at most (a power of two) and at least. */
#define ML_COPY_WORDS 2048
#define ML_COPY_LEAST 32
/* A power of two. */
#define ML_EXPECTATIONS 16
/* Words of a walk that can be remembered and sent. A power of two. */
#define ML_WALK_WORDS ML_BPF_WORDS_MAX
/*
 * Words that a key covers: a whole slice, or one read for threads that allocate too often to afford more: ML_RATE_CALLS
 * calls within ML_RATE_NS, 20,000 a second.
 */
#define ML_KEY_WORDS_WIDE 2048
#define ML_KEY_WORDS_NARROW ML_KEY_WORDS
#define ML_RATE_CALLS 256
#define ML_RATE_NS (ML_RATE_CALLS * 50000ull)

struct ml_pending {
	ml_u64 sp;             /* at entry, which identifies the return */
	ml_u64 size;
	ml_u64 pointer;        /* old block, or where the result is stored */
	ml_u64 old_address;    /* of a handle of --pairs that the call replaces or gives */
	ml_u64 return_address; /* before the uretprobe replaced it */
	ml_u32 function;
	ml_u32 is_internal; /* part of another call, which makes the block */
	ml_u32 has_old;
	ml_u32 has_key; /* its stack was walked before: */
	ml_u64 key;
	ml_u64 key_flags;
	struct ml_bpf_block old; /* claimed by realloc until its return */
};

/* A walk from a call outwards. sp, fp and return_address: as the callee returns. */
struct ml_walk {
	ml_u64 key;
	ml_u64 image;
	ml_u64 return_address;
	ml_u64 sp;
	ml_u64 fp;
	ml_u64 limit;   /* words at or above it are not read */
	ml_u64 wakeup;  /* flags for the ring buffer: does the agent wait for this stack? */
	ml_u64 n_pending; /* calls whose return addresses are hidden */
	ml_u64 window;  /* address of words[0] */
	ml_u64 window_bytes;
	ml_u64 begin;   /* sp of the innermost frame */
	ml_u64 span;    /* length of the thread's last walk */
	ml_u64 fp_offset;  /* where fp was read, see struct ml_frame */
	ml_u64 uses_fp;   /* a frame was found by the register */
	ml_u64 is_unknown;  /* it ended at an address without a rule */
	ml_u64 n_words;   /* from `begin` to the last that was used */
	ml_u64 n_offsets;  /* words that were used: */
	ml_u16 offsets[ML_WALK_WORDS]; /* in words from `begin`, with ML_BPF_OFFSET_OF_ADDRESS */
	ml_u64 read[ML_WALK_WORDS];
	ml_u64 words[ML_WINDOW_WORDS];
};

/* What a record of pages is made of, beside the registers. */
struct ml_pages_wanted {
	ml_u64 address;
	ml_u64 key;
	ml_u64 bytes;
	ml_u64 flags;
};

struct ml_thread {
	ml_u32 tid; /* 0 = free */
	ml_u32 has_left; /* a call that began before its function's entry was probed */
	ml_u64 sequence; /* of its last allocation */
	ml_u64 process;  /* exec epoch << 32 | tgid */
	ml_u64 identity; /* tgid | tid << 32: pid and tid of struct ml_evidence */
	struct ml_bpf_bounds stack; /* the mapping of the last recorded call's stack; empty: unknown */
	ml_u64 depth;     /* used entries of pending[] */
	ml_u64 key_words; /* ML_KEY_WORDS_WIDE or ML_KEY_WORDS_NARROW; part of every key */
	ml_u64 rate_time_ns; /* begin of the last ML_RATE_CALLS calls */
	ml_u64 image;        /* as of images_seen */
	ml_u64 images_seen;
	ml_u64 seed;         /* hash of process and image */
	ml_u64 is_recalled;  /* the last key was remembered: `walk` is of another call */
	ml_u16 expected_words[ML_EXPECTATIONS]; /* length of the last walks, by the low bits of their sp */
	ml_u64 too_deep;     /* calls not kept since a kept one returned */
	struct ml_pending pending[ML_PENDING];
	struct ml_bpf_returns returns;
	struct ml_walk walk;
	struct ml_pages_wanted wanted;
	struct ml_regs
		interrupted; /* see ML_BPF_EVIDENCE_INTERRUPTED; sp 0: no handler on an alternate stack was walked last */
	ml_u64 interrupted_flags; /* of the key of such a stack */
	struct ml_regs returned; /* of the last call whose return was seen at its `ret` */
};

/* By tgid. */
ML_MAP(HASH, processes, ml_u32, struct ml_bpf_process, 65536, BPF_F_NO_PREALLOC);

/* tid → the mapping of a stack, set by the agent for kernels whose programs cannot find it. */
ML_MAP(HASH, stacks, ml_u32, struct ml_bpf_bounds, 65536, BPF_F_NO_PREALLOC);
ML_MAP(ARRAY, keys, ml_u32, struct ml_bpf_key, ML_BPF_KEY_SLOTS, BPF_F_MMAPABLE);
ML_MAP(ARRAY, code, ml_u32, struct ml_bpf_code, 1, BPF_F_MMAPABLE);
ML_MAP(PERCPU_ARRAY, counters, ml_u32, ml_u64, ML_BPF_COUNTERS, 0);

static __always_inline struct ml_bpf_code *ml_code(void)
{
	ml_u32 zero = 0;

	return bpf_map_lookup_elem(&code, &zero);
}

/* Bytes from sp to the stack's end; 0 if that is unknown or sp is on another stack: a fiber's, or that of a signal. */
static __always_inline ml_u64 ml_stack_above(const struct ml_thread *thread, ml_u64 sp)
{
	return sp - thread->stack.low < thread->stack.end - thread->stack.low ? thread->stack.end - sp : 0;
}

static __always_inline void ml_forget_stack(struct ml_thread *thread)
{
	thread->stack.low = thread->stack.end = 0;
}

static __always_inline ml_u64 ml_mix(ml_u64 hash, ml_u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

/* Adds to this CPU's counter, atomically: uprobe programs can be preempted. */
static __noinline void ml_count(ml_u32 which, ml_u64 n)
{
	ml_u64 *counter = bpf_map_lookup_elem(&counters, &which);

	if (counter)
		__sync_fetch_and_add(counter, n);
}

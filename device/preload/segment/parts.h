/* SPDX-License-Identifier: Apache-2.0 */
/* Small parts of the segment (segment.h). */
#pragma once

#include "wire.h"

#define ML_CHILDREN_PIDS 512u /* power of two: 32-bit processors divide by nothing else */

/* The last part of the segment, which the forked children of a process keep: nothing in the process relies on it. */
struct ml_children {
	ml_u64 n; /* forked children that called the allocator and are not followed */
	ml_u32 pids[ML_CHILDREN_PIDS]; /* of the latest of them: child i's is at i % ML_CHILDREN_PIDS */
};

/* The high-water mark of a process; see keys.h. */
struct ml_peak_state {
	/* Read by every call, written when the mark rises: */
	ml_u64 generation __attribute__((aligned(64))); /* counts the marks from 1; 0: none are kept */
	ml_u64 batch; /* bytes that a thread may keep pending; 0: one thread */
	/* Written by many: */
	ml_u64 total __attribute__((aligned(64))); /* bytes held, without pending ones; signed */
	ml_u64 mark; /* the highest total, raised in steps */
	ml_u64 timestamp_ns;
	ml_u64 n_threads;    /* that may keep a batch each */
};

/* One word for each key: its bytes at a mark, and the mark's generation. */
#define ML_PEAK_BYTES_BITS 48 /* as many as addresses have */
#define ML_PEAK_BYTES_MASK ((1ull << ML_PEAK_BYTES_BITS) - 1)
#define ML_PEAK_GENERATION_MAX 0xffffull /* from 1 KiB to 2^48 bytes are 28,000 steps */
/* A new mark exceeds the last by more than 1/1024. */
#define ML_PEAK_STEP_SHIFT 10

#define ML_PYTHON_SLOT_BITS 15

/* A function in Python that was described to the agent, by the address of its code object. */
struct ml_python_slot {
	ml_u64 code;
	ml_u64 content;
	ml_u64 number;
};

/* Libraries that the process loads in a way that leads their calls of malloc() past the shim. */
enum ml_unseen_load {
	ML_LOADED_NAMESPACE = 1, /* dlmopen(): with a C library of its own */
	ML_LOADED_DEEP = 2,      /* RTLD_DEEPBIND: bound to libc's functions, not to those that are interposed */
};

/* All zero: none. */
struct ml_unseen_loads {
	ml_u32 noted; /* bits of enum ml_unseen_load: a thread writes what follows */
	ml_u32 kinds; /* … and has done so */
	char deep[120]; /* the first library of ML_LOADED_DEEP */
};

/* SPDX-License-Identifier: Apache-2.0 */
/* The high-water mark of a process, in the segment; see peak.h. */
#pragma once

#include "wire.h"

struct ml_peak_state {
	/* Read by every call, written as the mark rises: */
	ml_u64 generation __attribute__((aligned(64))); /* counts the marks, from 1 on; 0: none are kept */
	ml_u64 batch; /* what a thread may keep to itself of its changes; 0: nothing, there is one thread */
	/* Written by many: */
	ml_u64 total __attribute__((aligned(64))); /* bytes held, as far as threads have told; signed */
	ml_u64 mark; /* the highest total so far, raised in steps */
	ml_u64 timestamp_ns; /* when it was reached */
	ml_u64 n_threads;    /* that may keep a batch each */
};

/* For each key a word: what it held at a mark, and of which generation that is. */
#define ML_PEAK_BYTES_BITS 48 /* as many as addresses have */
#define ML_PEAK_BYTES_MASK ((1ull << ML_PEAK_BYTES_BITS) - 1)
#define ML_PEAK_GENERATION_MAX 0xffffull /* from 1 KiB to 2^48 bytes are 28,000 steps */
/* A new mark lies more than this part above the last one. */
#define ML_PEAK_STEP_SHIFT 10

/* SPDX-License-Identifier: Apache-2.0 */
/* The high-water mark of a process in the segment; see keys.h. */
#pragma once

#include "wire.h"

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

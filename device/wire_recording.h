/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/* The part of the wire format that only the host writes: the unwound stacks of a finished recording. Like wire.h, which includes it. */
#pragma once

#define ML_NO_TRACE 0xffffffffu
#define ML_NO_MODULE 0xffffffffu

/*
 * Chunk of the unwound stacks: traces first_trace … first_trace + n_traces - 1, followed by columns of
 * n_traces entries each: ml_u64 sequence (of the evidence), key; ml_u32 pid, n_frames, function, end
 * (TraceEnd of unwind/trace.py); then columns of n_frames entries each, the frames of all these traces,
 * innermost first: ml_u64 address, sp, vaddr; ml_u32 module (index into MODULES or ML_NO_MODULE);
 * ml_u16 method (Method of unwind/trace.py), is_return.
 */
struct ml_traces {
	ml_u32 first_trace;
	ml_u32 n_traces;
	ml_u32 n_frames;
	ml_u32 last; /* 1 on the last chunk */
};

enum ml_site_flag {
	ML_SITE_APPROXIMATE = 1, /* attributed by an ambiguous key */
};

/*
 * Chunk of the attribution of live blocks, followed by columns of `count` entries each:
 *   ml_u64 sequence (of the block); ml_u32 trace (or ML_NO_TRACE: unattributed), flags (bits 8-10: index in LeakKind + 1).
 */
struct ml_sites {
	ml_u64 snapshot;
	ml_u64 timestamp_ns;
	ml_u32 count;
	ml_u32 last;
};

ML_ASSERT_SIZE(struct ml_traces, 16);
ML_ASSERT_SIZE(struct ml_sites, 24);

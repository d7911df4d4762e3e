/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/*
 * The part of the wire format that tells of the calls of any functions (`memleakd snoop`). Like wire.h, which has
 * the kinds of blocks; host/wire/calls.py mirrors this file. A function is known by its number, which the host gave it.
 */
#pragma once

#include "wire.h"

#define ML_CALL_ARGUMENTS 6
#define ML_CALL_RETURN 6 /* instead of an argument's number: the return value */
#define ML_CALL_FUNCTIONS_MAX 4096u

enum ml_call_type {
	ML_CALL_ENTRY = 1,
	ML_CALL_EXIT = 2,
	ML_CALL_UNPAIRED = 3, /* left without a return that could be seen: longjmp, an exception, the thread's end */
};

struct ml_call {
	ml_u32 data_offset; /* of its captures among those of the block */
	ml_u16 type;        /* enum ml_call_type */
	ml_u16 n_captures;
	ml_u64 timestamp_ns;
	ml_u64 call; /* number of the call: the same at its entry and at its end, unique in a session */
	ml_u32 function;
	ml_u32 depth; /* calls in progress on the thread, this one not counted */
	ml_u32 tgid;
	ml_u32 tid;
	ml_u64 duration_ns; /* of EXIT, between the two programs */
	ml_u64 values
		[ML_CALL_ARGUMENTS]; /* ENTRY: the arguments. EXIT: [0] the return value, [1] not 0: left by a jump, no value yet */
};

/* Memory that an argument pointed to; followed by the bytes, zero padded to a multiple of 8. */
struct ml_call_capture {
	ml_u16 argument; /* ML_CALL_RETURN: of the return value */
	ml_u16 bytes;
	ml_s32 error; /* errno when it could not be read, else 0 */
};

/* ML_BLOCK_CALLS: followed by count ml_call, then data_bytes of captures. */
struct ml_calls {
	ml_u32 count;
	ml_u32 data_bytes;
};

/*
 * Durations are counted in log-linear buckets: below 16 ns one bucket for each nanosecond, above 16 of equal width for
 * each power of two. Bucket i >= 16 begins at (16 + i % 16) << (i / 16 - 1); the last takes whatever is longer.
 */
#define ML_CALL_SUB_BUCKETS 16u
#define ML_CALL_BUCKETS 624u

/* ML_BLOCK_CALL_STATISTICS: followed by count ml_call_statistics, each with its buckets. */
struct ml_call_totals {
	ml_u64 timestamp_ns;
	ml_u32 count;
	ml_u32 final; /* 1: the last ones */
};

struct ml_call_statistics { /* followed by n_buckets ml_call_bucket: those that are not empty, in order */
	ml_u32 function;
	ml_u32 n_buckets;
	ml_u64 calls; /* entered, without those that a filter drops */
	ml_u64 returns;
	ml_u64 unpaired;
	ml_u64 filtered; /* dropped by a filter */
	ml_u64 hidden; /* counted here, but without events: beyond the rate limit */
	ml_u64 total_ns; /* of the calls that returned */
	ml_u64 min_ns;
	ml_u64 max_ns;
};

struct ml_call_bucket {
	ml_u32 bucket;
	ml_u32 reserved;
	ml_u64 count;
};

enum ml_probe_way {
	ML_PROBE_MULTI = 1, /* one link for many: BPF_TRACE_UPROBE_MULTI (Linux 6.6; its filter by process: 6.10) */
	ML_PROBE_PERF = 2, /* a perf event for each */
};

enum ml_probe_kind {
	ML_PROBE_ENTRY = 0,
	ML_PROBE_RETURN = 1, /* the kernel exchanges the return address of each call */
	ML_PROBE_INSTRUCTION = 2, /* at an instruction that returns */
	ML_PROBE_TAIL = 3, /* at one that jumps to another function */
};

#define ML_PROBE_ERROR_PATCHED (-1) /* the process's code is not its file's there: a uprobe would end it */

/* ML_BLOCK_PROBE_RESULTS: what became of each probe in each process. */
struct ml_probe_result {
	ml_u32 function;
	ml_u32 pid; /* 0 = all processes */
	ml_s32 error; /* errno, or the one above; 0 = attached */
	ml_u16 way; /* enum ml_probe_way */
	ml_u16 kind; /* enum ml_probe_kind */
};

ML_ASSERT_SIZE(struct ml_call, 96);
ML_ASSERT_SIZE(struct ml_call_capture, 8);
ML_ASSERT_SIZE(struct ml_calls, 8);
ML_ASSERT_SIZE(struct ml_call_totals, 16);
ML_ASSERT_SIZE(struct ml_call_statistics, 72);
ML_ASSERT_SIZE(struct ml_call_bucket, 16);
ML_ASSERT_SIZE(struct ml_probe_result, 16);

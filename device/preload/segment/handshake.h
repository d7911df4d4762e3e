/* SPDX-License-Identifier: Apache-2.0 */
/* What shim and agent say to each other on the agent's abstract socket before they share a segment. */
#pragma once

#include "wire.h"

#define ML_SEGMENT_MAGIC 0x31676573306b6c6dull /* "mlk0seg1" */

enum ml_setting_flag {
	ML_SETTING_EVERY_STACK = 1,
	ML_SETTING_FOLLOW = 2,
	ML_SETTING_EVENTS = 4,
	ML_SETTING_MMAP = 8,
	ML_SETTING_NO_EVIDENCE = 16,
	ML_SETTING_FRAME_CHAIN = 32, /* evidence brings the chain of frame records, too */
	ML_SETTING_NO_STACK = 64,    /* … and nothing of the stack */
	ML_SETTING_CHAIN_BY_CFI = 128, /* it is walked by CFI where there is any */
	ML_SETTING_NO_AGENT = 256,   /* nobody empties the rings: what does not fit is lost at once */
	ML_SETTING_NO_HEAP = 512,    /* functions of --pairs alone */
	ML_SETTING_EXTEND_STACKS = 1024, /* evidence of stacks longer than stack_bytes brings what leads through the rest */
};

struct ml_settings {
	ml_u64 sample_bytes; /* mean distance of samples; 0 = every allocation */
	ml_u64 min_size;
	ml_u64 max_size;
	ml_u64 max_live;
	ml_u32 stack_bytes; /* cap on a slice */
	ml_u32 key_bytes;   /* how much of the stack the key reads */
	ml_u32 flags;       /* enum ml_setting_flag */
	ml_u32 n_threads;   /* power of two */
	ml_u32 n_keys;      /* power of two */
	ml_u32 ring_bytes;  /* of one thread, power of two */
	ml_u32 n_chunks;    /* of shadow memory, power of two; 0 = none */
	ml_u32 reserved;
};

/* shim → agent, then agent → shim with the settings, then shim → agent with the memfd, then the shim waits for one byte. */
struct ml_greeting {
	ml_u64 magic; /* ML_SEGMENT_MAGIC */
	ml_u64 nonce; /* proves on both ends that the other belongs to this session */
	ml_u32 wire_version;
	ml_u32 pid;
	ml_u32 parent;
	ml_u32 session_index; /* agent → shim: number of the process in the session, from 0 */
	struct ml_settings settings;
};

ML_ASSERT_SIZE(struct ml_settings, 64);
ML_ASSERT_SIZE(struct ml_greeting, 96);

/* What the agent tells a process at the end, in its segment: no call is recorded that begins after that. */
enum ml_over {
	ML_SESSION_RUNS = 0,
	ML_SESSION_OVER = 1, /* hooks are taken out by who put them in */
	ML_SESSION_ABANDONED = 2, /* by the process itself, where they still stand: nobody else will */
};

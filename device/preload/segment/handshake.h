/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of shim and agent on the agent's abstract socket, before they share a segment. */
#pragma once

#include "wire.h"

#define ML_SEGMENT_MAGIC 0x32676573306b6c6dull /* "mlk0seg2" */

/* Known to both ends of a session only: random, and in no name that other users can read. */
struct ml_nonce {
	ml_u64 words[2];
};

#define ML_NONCE_DIGITS 32 /* hexadecimal, as in NAME:NONCE */

static inline int ml_nonce_is_set(const struct ml_nonce *nonce)
{
	return (nonce->words[0] | nonce->words[1]) != 0;
}

/* In a time that does not depend on the values. */
static inline int ml_nonce_is_same(const struct ml_nonce *one, const struct ml_nonce *other)
{
	return ((one->words[0] ^ other->words[0]) | (one->words[1] ^ other->words[1])) == 0;
}

enum ml_setting_flag {
	ML_SETTING_EVERY_STACK = 1,
	ML_SETTING_FOLLOW = 2,
	ML_SETTING_EVENTS = 4,
	ML_SETTING_MMAP = 8,
	ML_SETTING_NO_EVIDENCE = 16,
	ML_SETTING_FRAME_CHAIN = 32, /* evidence includes the chain of frame records */
	ML_SETTING_NO_STACK = 64,    /* … and no stack */
	ML_SETTING_CHAIN_BY_CFI = 128, /* the chain is walked by CFI where there is any */
	ML_SETTING_NO_AGENT = 256,   /* the rings are never emptied; what does not fit is lost at once */
	ML_SETTING_NO_HEAP = 512,    /* only functions of --pairs */
	ML_SETTING_EXTEND_STACKS =
		1024, /* evidence of stacks longer than stack_bytes includes the words that lead through the rest */
	ML_SETTING_NO_PYTHON_OBJECTS = 2048, /* Python's allocators stay as they are */
	ML_SETTING_NO_PYTHON_LINES = 4096, /* evidence has no frames in Python */
};

struct ml_settings {
	ml_u64 sample_bytes; /* mean distance of samples; 0 = every allocation */
	ml_u64 min_size;
	ml_u64 max_size;
	ml_u64 max_live;
	ml_u32 stack_bytes; /* maximum of a slice */
	ml_u32 key_bytes;   /* of the stack, read for the key */
	ml_u32 flags;       /* enum ml_setting_flag */
	ml_u32 n_threads;   /* power of two */
	ml_u32 n_keys;      /* power of two */
	ml_u32 ring_bytes;  /* of one thread, power of two */
	ml_u32 n_chunks;    /* of shadow memory, power of two; 0 = none */
	ml_u32 reserved;
};

/* Python's objects in this process. */
enum ml_python_objects {
	ML_PYTHON_OBJECTS_NONE = 0, /* there is no interpreter, or the session does not want them */
	ML_PYTHON_OBJECTS_COUNTED = 1,
	ML_PYTHON_OBJECTS_REFUSED = 2, /* the interpreter's allocators must not be wrapped */
};

/* shim → agent, agent → shim with the settings, shim → agent with the memfd, then the shim waits for one byte. */
struct ml_greeting {
	ml_u64 magic; /* ML_SEGMENT_MAGIC */
	struct ml_nonce nonce;
	ml_u32 wire_version;
	ml_u32 pid;
	ml_u32 parent;
	ml_u32 session_index; /* agent → shim: number of the process in the session, from 0 */
	struct ml_settings settings;
};

ML_ASSERT_SIZE(struct ml_settings, 64);
ML_ASSERT_SIZE(struct ml_greeting, 104);

/* Set in the segment at the end, by the agent but for the last. No call that begins later is recorded. */
enum ml_over {
	ML_SESSION_RUNS = 0,
	ML_SESSION_OVER = 1, /* the agent removes the hooks */
	ML_SESSION_ABANDONED = 2, /* the process removes them itself where they remain */
	ML_SESSION_LEFT = 3, /* the process has removed them, and its segment */
};

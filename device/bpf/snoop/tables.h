/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/*
 * snoop: calls of any functions come in; call records and statistics go out. This header: the structures in maps shared
 * with the agent, never sent to the host.
 */
#pragma once

#include "wire_calls.h"

#define ML_SNOOP_OPTIONS_SECTION ".rodata.options"

struct ml_snoop_options {
	ml_u32 process;     /* the traced one; 0: those in the map `processes` */
	ml_u32 has_threads; /* only threads in the map `wanted_threads` */
	ml_u32 has_cookies; /* bpf_get_attach_cookie (Linux 5.15); else by address */
	ml_u32 events;      /* send calls, not only count them */
	ml_u32 stack_bytes; /* of each call that is sent; 0 = none */
	ml_u32 fork_pid;    /* offsets in task_newtask's event; both 0: children are not followed */
	ml_u32 fork_flags;
	ml_u64 rate;        /* calls of a function sent in a second; 0 = all */
	ml_u64 signature_mask; /* signature.h */
	ml_u64 quiet_flags; /* of a record in a ring that wakes up no reader. Runtimes in user space accept 0 only */
};

/* Of a stack: the kernel's MAX_URETPROBE_DEPTH. */
#define ML_SNOOP_FIXUPS 64
#define ML_SNOOP_CAPTURES 4
#define ML_SNOOP_FILTERS 4
/* Bytes of all captures of a call with their heads, and of one. Powers of two. */
#define ML_SNOOP_DATA 1024

/* In a probe's cookie, beside the function: the call ends by a jump to another function. */
#define ML_SNOOP_TAIL (1u << 31)

enum ml_snoop_capture_kind {
	ML_SNOOP_STRING = 1,
	ML_SNOOP_BYTES = 2,
	ML_SNOOP_PATH = 3, /* of a file descriptor, resolved by the agent */
};

struct ml_snoop_capture {
	ml_u8 argument; /* ML_CALL_RETURN: of the return value */
	ml_u8 kind;     /* enum ml_snoop_capture_kind */
	ml_u16 bytes;   /* less than ML_SNOOP_DATA */
};

enum ml_snoop_comparison {
	ML_SNOOP_EQ = 1,
	ML_SNOOP_NE,
	ML_SNOOP_LT,
	ML_SNOOP_LE,
	ML_SNOOP_GT,
	ML_SNOOP_GE,
	ML_SNOOP_AND,    /* any of the bits is set */
	ML_SNOOP_SIGNED, /* added to the others: compares signed numbers */
};

struct ml_snoop_filter {
	ml_u32 argument;
	ml_u16 comparison;
	ml_u16 bits; /* of the argument; 0: 64, or 32 where its upper half is 0 */
	ml_u64 value;
};

struct ml_snoop_function {
	ml_u32 has_return; /* a return probe is placed */
	ml_u32 n_filters;
	ml_u32 n_captures;
	struct ml_snoop_capture captures[ML_SNOOP_CAPTURES];
	struct ml_snoop_filter filters[ML_SNOOP_FILTERS];
	ml_u64 second; /* of the rate limit, written by the programs */
	ml_u64 n_in_second;
};

/* A mappable array. Fields are only added to or raised. */
struct ml_snoop_statistics {
	ml_u64 calls, returns, unpaired, filtered, hidden;
	ml_u64 total_ns;
	ml_u64 max_ns;
	ml_u64 max_inverted_ns; /* ~ of the shortest */
	ml_u64 buckets[ML_CALL_BUCKETS];
};

struct ml_snoop_address {
	ml_u64 address;
	ml_u64 tgid;
};

/* A mappable array of one. */
struct ml_snoop_control {
	ml_u64 is_armed; /* 0: calls are ignored while probes are being placed */
};

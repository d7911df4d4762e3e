/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/* The effect of a function of the heap or of --pairs, sent by the host and applied by the BPF programs and the shim. */
#pragma once

#include "wire.h"

#define ML_PAIR_VALUES 8

/* When a call that acquires has succeeded, by what it returns. */
enum ml_pair_success {
	ML_PAIR_NOT_ZERO,     /* a pointer */
	ML_PAIR_ZERO,         /* an int: pthread_create */
	ML_PAIR_NOT_NEGATIVE, /* an int: open */
	ML_PAIR_NOT_MINUS_1,  /* a pointer: mmap */
	ML_PAIR_ALWAYS,
};

/* Selects the nested calls that count as part of the outer call of the family. */
enum ml_pair_nesting {
	ML_PAIR_OUTER,    /* all */
	ML_PAIR_ALL,      /* none: each counts */
	ML_PAIR_OWN_CODE, /* those from the code of the functions' own file */
};

/* Location of the handles: struct ml_pair's is_indirect. */
enum ml_pair_place {
	ML_PAIR_ITSELF,     /* the argument, or what is returned */
	ML_PAIR_STORED,     /* where the argument points */
	ML_PAIR_IN_MESSAGE, /* descriptors that came with the struct msghdr to which it points: recvmsg */
};

#define ML_PAIR_THROUGH_END 7u /* struct ml_pair's through: there is no last one */

/*
 * One function. Arguments count from 1. A handle is a block's address in the live table; the family, in its top byte,
 * keeps those of one kind apart from all others.
 */
struct ml_pair {
	ml_u32 family;       /* 0: the heap's, else 1 … ML_PAIRS */
	ml_u32 nesting;      /* enum ml_pair_nesting */
	ml_u32 size_a;       /* arguments whose product, times `factor`, is the size; 0 = none */
	ml_u32 size_b;
	ml_u64 factor;
	ml_u32 handle;       /* argument; 0 = the return value */
	ml_u32 is_indirect;  /* enum ml_pair_place */
	ml_u32 handle_bytes; /* 4 or 8 */
	ml_u32 n_handles;    /* side by side in memory; 0: what only releases, where it succeeds */
	ml_u32 success;      /* enum ml_pair_success */
	ml_u32 replaces;     /* a handle that is live already has been released by the call: dup2 */
	ml_u32 old;          /* argument that is released where the call succeeds: realloc; 0 = none */
	ml_u32 zero_frees;   /* a call for size 0 releases it even where it fails: realloc */
	ml_u32 is_release;
	ml_u32 through; /* argument: the last of a range of handles that are released, or ML_PAIR_THROUGH_END; 0 = it is one */
	ml_u32 is_early; /* a release may come before the call that acquires has returned: a thread that detaches itself */
	ml_u32 is_sized; /* the size is what a function of the process says of the handle: only the shim can call it */
	ml_u32 handle_offset; /* from where the argument points to where the handle is stored */
	ml_u32 has_exits; /* BPF: its returns are seen at the instructions that leave it, so an exception may leave it unseen */
	ml_u32 is_of_process; /* handles are one process's: a child of vfork() that shares the memory has its own */
	struct {
		ml_u32 argument; /* 0: all calls count */
		ml_u32 is_indirect;
		ml_u32 offset;
		ml_u32 mask; /* of the argument's low 32 bits, or of those at offset from where it points; NULL points to 0 */
		ml_u32 values[ML_PAIR_VALUES]; /* a call counts where they are one of these; the last is repeated */
	} when;
};

/* Whether calls for a live handle acquire further references of it, as SSL_up_ref() does: each is a block of its own. */
static inline int ml_pair_counts_references(const volatile struct ml_pair *rule)
{
	return rule->handle && !rule->is_indirect && !rule->replaces && !rule->old && !rule->is_early;
}

#define ML_PAIRS (ML_FN_MAX - ML_FN_PAIR)
#define ML_PAIR_HANDLES 2 /* stored side by side */
#define ML_PAIR_FAMILY_SHIFT 56 /* of an address in the live table */
#define ML_PAIR_HANDLE_MASK ((1ull << ML_PAIR_FAMILY_SHIFT) - 1)

/*
 * A handle of 8 bytes without its top byte. On x86_64 no pointer has a tag there: a handle that has one is hashed. On
 * arm64 it is the tag of a pointer, which does not count.
 */
static inline ml_u64 ml_pair_short_handle(ml_u64 value)
{
#if defined(__aarch64__) || defined(__TARGET_ARCH_arm64)
	return value & ML_PAIR_HANDLE_MASK;
#else
	return value >> ML_PAIR_FAMILY_SHIFT ? value * 0x9e3779b97f4a7c15ull >> 8 : value;
#endif
}

/* struct msghdr and struct cmsghdr of 64-bit code (linux/socket.h); C libraries that have shorter lengths fill up with zeros. */
#define ML_MESSAGE_CONTROL 32u /* msg_control, then msg_controllen */
#define ML_MESSAGE_DESCRIPTORS 253u /* SCM_MAX_FD */
#define ML_MESSAGE_PARTS 4u /* credentials, a time, … may precede SCM_RIGHTS */
#define ML_MESSAGE_RIGHTS 0x100000001ull /* cmsg_level SOL_SOCKET, cmsg_type SCM_RIGHTS */

struct ml_message_part {
	ml_u64 bytes; /* this header's and what follows it; the next part begins at a multiple of 8 */
	ml_u64 kind; /* level | type << 32 */
};

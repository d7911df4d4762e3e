/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/*
 * The wire format: what a collector writes into a ring, what the agent writes to its standard output,
 * and what a recording file holds. host/wire/blocks.py mirrors this file and nothing else does.
 *
 * Everything is little-endian, every field naturally aligned, every record and payload a multiple of 8 bytes. Times are
 * CLOCK_MONOTONIC nanoseconds. An address is one in the target's address space without its tag. docs/wire-protocol.md draws these structures.
 *
 * Included by BPF programs (no libc), by the agent and by the shim: integer types are the compiler's own.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef __UINT8_TYPE__ ml_u8;
typedef __UINT16_TYPE__ ml_u16;
typedef __UINT32_TYPE__ ml_u32;
typedef __UINT64_TYPE__ ml_u64;
typedef __INT32_TYPE__ ml_s32;

/* Both ends must have the same version, otherwise they refuse the connection. */
#define ML_WIRE_VERSION 2u
/* ---- blocks: the agent's standard output and the recording file ---------------------------------- */
#define ML_BLOCK_MAGIC 0x314b4c4du /* "MLK1" */
#define ML_BLOCK_PAYLOAD_MAX (16u << 20)

enum ml_block_kind {
	ML_BLOCK_HELLO = 1,    /* struct ml_hello: first on every stream */
	ML_BLOCK_EVIDENCE = 2, /* struct ml_evidence records, back to back */
	ML_BLOCK_LIVE = 3,     /* struct ml_live + columns: one chunk of a live-table snapshot */
	ML_BLOCK_KEYS = 4,     /* struct ml_keys + columns: one chunk of the per-key counters */
	ML_BLOCK_MAPS = 5,     /* struct ml_maps + text of /proc/PID/maps, zero padded */
	ML_BLOCK_MAPPINGS = 6, /* struct ml_mapping records: executable mappings made since */
	ML_BLOCK_PROCESS = 7,  /* struct ml_process records: start, fork, exec, exit */
	ML_BLOCK_EVENTS = 8,   /* struct ml_event records: every call (--trace, --record-all) */
	ML_BLOCK_STATUS = 9,   /* struct ml_status: running totals and losses */
	ML_BLOCK_LOG = 10,     /* UTF-8 text, zero padded: one remark of the agent */
	ML_BLOCK_ERROR = 11,   /* struct ml_error + UTF-8 text: why the session cannot go on */
	ML_BLOCK_END = 12,     /* struct ml_end: last on every stream that was not cut */
	ML_BLOCK_CALLS = 13,
	ML_BLOCK_CALL_STATISTICS = 14,
	ML_BLOCK_PROBE_RESULTS = 15, /* wire_calls.h: of any functions (snoop) */
	ML_BLOCK_HOOKED = 16,  /* struct ml_hooked records: what became of modules whose slots are patched */
	ML_BLOCK_STOPS = 17,   /* struct ml_stop records: how long the target's threads stood still */
	ML_BLOCK_KERNEL_SYMBOLS = 18, /* UTF-8 text, zero padded: what kernel addresses of stacks are called */
	ML_BLOCK_HIGH_WATER = 19, /* struct ml_high_water + columns: the allocations at the peak */
	ML_BLOCK_EXIT_STOP = 20,
	ML_BLOCK_SCAN = 21,
	ML_BLOCK_STOPPED_THREADS = 22,
	ML_BLOCK_SCANNED = 23, /* wire_hooks.h: processes that are held, or searched */
	ML_BLOCK_GAP = 24,     /* UTF-8 text, zero padded: condition, answer, reason: what is not measured */
	ML_BLOCK_PYTHON_CODE = 25, /* struct ml_python_code records: functions in Python of evidence */
	ML_BLOCK_SESSION = 32, /* from here on by the host only, into recordings. JSON text: command line, options, target */
	ML_BLOCK_MODULES = 33, /* JSON text: path, build-id, arch, bias of each module */
	ML_BLOCK_TRACES = 34,  /* struct ml_traces + columns: unwound frames by trace number */
	ML_BLOCK_SITES = 35,   /* struct ml_sites + columns: survivors by trace number */
	ML_BLOCK_FILES = 36,   /* JSON text: which file a device's mappings showed; in recordings that still grow */
	ML_BLOCK_HELD = 37,    /* struct ml_live + columns: what each key held at an earlier snapshot */
	ML_BLOCK_PEAK = 38,    /* the same, at the one that held most */
};

struct ml_block {
	ml_u32 magic;         /* ML_BLOCK_MAGIC */
	ml_u16 kind;          /* enum ml_block_kind */
	ml_u16 version;       /* ML_WIRE_VERSION */
	ml_u32 payload_bytes; /* multiple of 8, at most ML_BLOCK_PAYLOAD_MAX */
	ml_u32 crc32;         /* of the payload, zlib's crc32() */
};

enum ml_arch { ML_ARCH_X86_64 = 1, ML_ARCH_ARM64 = 2, ML_ARCH_ARM32 = 3, ML_ARCH_I386 = 4 };

enum ml_collector {
	ML_COLLECTOR_BPF = 1,
	ML_COLLECTOR_PRELOAD = 2,
	ML_COLLECTOR_PLT = 3,
	ML_COLLECTOR_INLINE = 4,
	ML_COLLECTOR_LINKED = 5, /* the program records itself (preload/include/memleak.h) */
};

struct ml_hello {
	ml_u32 wire_version; /* ML_WIRE_VERSION */
	ml_u16 arch;         /* enum ml_arch, of the agent */
	ml_u16 collector;    /* enum ml_collector */
	ml_u32 page_bytes;
	ml_u32 pid;            /* of the target; 0 = not known yet */
	ml_u64 monotonic_ns;   /* the same instant on both clocks, so that */
	ml_u64 realtime_ns;    /* times can be shown as wall-clock time */
	char agent_version[24]; /* text, zero padded */
};

/* ---- evidence: registers and stack bytes of one allocation --------------------------------------- */

#define ML_FIXUPS 4
#define ML_STACK_BYTES_MAX 65528u /* PERF_SAMPLE_STACK_USER's own limit: u16, multiple of 8 */

/* The functions whose calls are recorded; also the name of the innermost frame of a site. */
enum ml_function {
	ML_FN_UNKNOWN = 0,
	ML_FN_MALLOC = 1,
	ML_FN_CALLOC = 2,
	ML_FN_REALLOC = 3,
	ML_FN_REALLOCARRAY = 4,
	ML_FN_POSIX_MEMALIGN = 5,
	ML_FN_MEMALIGN = 6,
	ML_FN_ALIGNED_ALLOC = 7,
	ML_FN_VALLOC = 8,
	ML_FN_PVALLOC = 9,
	ML_FN_FREE = 10,
	ML_FN_CFREE = 11,
	ML_FN_FREE_SIZED = 12,
	ML_FN_FREE_ALIGNED_SIZED = 13,
	ML_FN_KMALLOC = 16, /* the kernel's own, up to PERCPU_ALLOC */
	ML_FN_KMEM_CACHE_ALLOC = 17,
	ML_FN_MM_PAGE_ALLOC = 18,
	ML_FN_PERCPU_ALLOC = 19,
	ML_FN_MMAP = 32, /* region ledger from here on */
	ML_FN_MMAP64 = 33,
	ML_FN_MUNMAP = 34,
	ML_FN_MREMAP = 35,
	ML_FN_SHMAT = 36, /* shmdt is a munmap of unknown size */
	ML_FN_SBRK = 37, /* and brk; what they give back is a munmap */
	ML_FN_PAIR = 64, /* the first of a session's --pairs; SESSION, "pairs" names each */
	ML_FN_MAX = 256,
};

enum ml_evidence_flag {
	ML_EVIDENCE_AT_RETURN = 1,      /* the pc register is a return address: look up pc-1 */
	ML_EVIDENCE_STACK_WHOLE = 2,    /* the slice reaches the end of the thread's stack */
	ML_EVIDENCE_STACK_FAULT = 4,    /* the slice could not be read; stack_bytes is 0 */
	ML_EVIDENCE_FIXUPS_CUT = 8,     /* more than ML_FIXUPS calls were pending */
	ML_EVIDENCE_VERIFY = 16,        /* a re-send of a known key */
	ML_EVIDENCE_STACK_SPARSE = 32,  /* not the slice follows but what of it leads from frame to frame (ml_sparse_stack) */
	ML_EVIDENCE_FRAME_CHAIN = 64,   /* behind the stack follows a chain of return addresses (ml_frame_chain) */
	ML_EVIDENCE_CHAIN_IS_CFI = 128, /* … which the shim walked by CFI: there is nothing to unwind */
	ML_EVIDENCE_CHAIN_IS_KERNEL = 256, /* … of the kernel's, which the user's frames follow */
	ML_EVIDENCE_STACK_ABOVE = 512,  /* then follow words of the stack above the slice (ml_stack_above) */
	ML_EVIDENCE_PYTHON_FRAMES = 1024, /* behind all follow the thread's frames in Python (ml_python_frames) */
	ML_EVIDENCE_INTERRUPTED =
		2048, /* behind the chain follows the stack that a signal handler interrupted (ml_interrupted_stack) */
};

struct ml_fixup {
	ml_u64 slot_address; /* where on the stack a uretprobe put its trampoline */
	ml_u64 value;        /* the return address it replaced */
};

/*
 * Followed by: ml_u64 registers[n_registers] in the kernel's struct pt_regs order of the architecture
 * (x86_64: 21 words, arch/x86/include/asm/ptrace.h), then stack_bytes bytes of the stack from
 * stack_address upwards, then zero bytes to a multiple of 8.
 * A ring may pad a record further: record_bytes is what to skip, stack_bytes what to read.
 */
struct ml_evidence {
	ml_u32 record_bytes;
	ml_u16 flags;    /* enum ml_evidence_flag */
	ml_u16 function; /* enum ml_function */
	ml_u64 sequence; /* of the allocation, unique in a session, never 0 */
	ml_u64 timestamp_ns;
	ml_u64 key; /* stack key: allocations of one key share one stack until proved otherwise */
	ml_u64 address;
	ml_u64 size;
	ml_u32 pid;
	ml_u32 tid;
	ml_u16 n_registers;
	ml_u16 n_fixups; /* used entries of fixups[] */
	ml_u32 stack_bytes;
	ml_u64 stack_address;
	ml_u64 registers_known; /* bit i: registers[i] holds the caller's value */
	struct ml_fixup fixups[ML_FIXUPS];
};

/*
 * Replaces the stack bytes if ML_EVIDENCE_STACK_SPARSE is set: the words that a walk by frame rules has read, then
 * ml_u16 indices[n_words], in words from stack_address on, below stack_bytes / 8. stack_bytes: at most ML_SPARSE_BYTES_MAX.
 */
#define ML_SPARSE_BYTES_MAX (1u << 18)

struct ml_sparse_stack {
	ml_u64 n_words;
	ml_u64 words[];
};

#define ML_FRAME_CHAIN_MAX 256u

/*
 * Follows the stack bytes (zero padded to a multiple of 8) or their replacement if ML_EVIDENCE_FRAME_CHAIN is set: the
 * callers of the pc register's function, innermost first, found by frame pointers alone or, with
 * ML_EVIDENCE_CHAIN_IS_CFI, by the CFI in the process's memory.
 */
struct ml_frame_chain {
	ml_u32 n_frames; /* at most ML_FRAME_CHAIN_MAX */
	ml_u32 end;      /* TraceEnd of unwind/trace.py */
	ml_u64 addresses[]; /* return addresses, without signatures */
};

#define ML_ABOVE_BYTES_MAX (1u << 20)
#define ML_ABOVE_WORDS_MAX (1u << 15)

/*
 * Behind these parts if ML_EVIDENCE_STACK_ABOVE is set: words of the stack above the slice, which was too
 * short, then ml_u32 indices[n_words], in words from stack_address + stack_bytes on, rising, each below reach_bytes / 8; zero
 * padded to a multiple of 8. The words are those that may lead from frame to frame: that point to code, or into this
 * part of the stack. The other words are unknown. Never with ML_EVIDENCE_STACK_SPARSE.
 */
struct ml_stack_above {
	ml_u32 reach_bytes; /* multiple of 8, at most ML_ABOVE_BYTES_MAX */
	ml_u32 n_words;     /* at most ML_ABOVE_WORDS_MAX */
	ml_u64 words[];
};

/* ---- the live table and the counters ------------------------------------------------------------- */

/*
 * Chunk of a snapshot, followed by columns of `count` entries each, in this order:
 *   ml_u64 address, size, timestamp_ns, sequence, key; ml_u32 pid, tid, function, sample_bytes.
 * An odd count is padded by one zero entry in the ml_u32 columns' total (payload multiple of 8).
 */
struct ml_live {
	ml_u64 snapshot; /* number of the snapshot, from 1 */
	ml_u64 timestamp_ns;
	ml_u32 count;
	ml_u32 last; /* 1 on the last chunk of the snapshot */
};

/* Bits of the `flags` column of ML_BLOCK_KEYS. */
enum ml_key_flag {
	ML_KEY_PARTIAL = 2, /* covers part of the stack only: its blocks without evidence of their own are approximate */
};

/*
 * Chunk of the per-key counters at a snapshot, followed by columns of `count` ml_u64 each:
 *   key, alloc_objects, alloc_bytes, free_objects, free_bytes, flags, pid.
 */
struct ml_keys {
	ml_u64 snapshot;
	ml_u64 timestamp_ns;
	ml_u32 count;
	ml_u32 last;
};

/* Why something is missing. Counted since the start of the session, never reset. */
enum ml_lost {
	ML_LOST_RING_FULL = 0,     /* evidence dropped: no room in the ring */
	ML_LOST_STACK_FAULT = 1,   /* evidence without stack bytes */
	ML_LOST_TABLE_FULL = 2,    /* a block that the live table could not take: totals are too low */
	ML_LOST_KEYS_FULL = 3,     /* a block without a stack key */
	ML_LOST_THREADS_FULL = 4,  /* calls of a thread for which there was no state */
	ML_LOST_PENDING_FULL = 5,  /* calls nested deeper than the pending stack */
	ML_LOST_MISSED_ENTRY = 6,  /* a return without its entry */
	ML_LOST_MISSED_RETURN = 7, /* an entry without its return */
	ML_LOST_MISSED_FREE = 8,   /* an allocation at an address that was live: its free was not seen */
	ML_LOST_EVENTS = 9,        /* events of --trace dropped */
	ML_LOST_MAPPINGS = 10,     /* mapping records dropped */
	ML_LOST_NURSERY_FULL = 11, /* evidence dropped: the agent's nursery was full */
	ML_LOST_REGIONS = 12,      /* region ledger operations that could not be applied */
	ML_LOST_PROGRAMS = 13,     /* programs that ran in the session and were not measured */
	ML_LOST_RECURSION = 14,    /* calls of the kernel's allocators from within the tracer's own work on that CPU */
	ML_LOST_HANDLES = 15,      /* calls of --pairs that gave more handles at once than are followed */
	ML_LOST_MAX = 16,
};

struct ml_status {
	ml_u64 timestamp_ns;
	ml_u64 alloc_objects; /* calls that succeeded, since the start */
	ml_u64 alloc_bytes;
	ml_u64 free_objects; /* frees of known blocks */
	ml_u64 free_bytes;
	ml_u64 untracked_frees; /* frees of blocks that are not in the table */
	ml_u64 evidence_records;
	ml_u64 heap_bytes_of_target; /* 0 = not known */
	ml_u64 tracer_cpu_ns;        /* CPU time of the agent */
	ml_u64 lost[ML_LOST_MAX];    /* by enum ml_lost */
};

/* ---- processes and mappings ---------------------------------------------------------------------- */

struct ml_maps { /* followed by the text */
	ml_u64 timestamp_ns;
	ml_u32 pid;
	ml_u32 text_bytes;
};

struct ml_mapping { /* followed by the path, zero padded to a multiple of 8 */
	ml_u32 record_bytes;
	ml_u32 pid;
	ml_u64 timestamp_ns;
	ml_u64 start;
	ml_u64 end;
	ml_u64 file_offset;
	ml_u64 inode;
	ml_u32 device_major;
	ml_u32 device_minor;
	ml_u32 protection; /* PROT_*, ML_MAPPING_SHARED */
	ml_u32 path_bytes;
};

#define ML_MAPPING_SHARED 8u

enum ml_process_event {
	ML_PROCESS_START = 1, /* seen first: maps follow */
	ML_PROCESS_FORK = 2,  /* pid was forked from parent and shares its mappings so far */
	ML_PROCESS_EXEC = 3,  /* all mappings are gone */
	ML_PROCESS_EXIT = 4,
};

struct ml_process {
	ml_u64 timestamp_ns;
	ml_u32 pid;
	ml_u32 parent;
	ml_u32 event;  /* enum ml_process_event */
	ml_s32 status; /* wait status of EXIT, -1 = not known */
	char comm[16];
};

/* ---- every call (--trace, --record-all) ---------------------------------------------------------- */

struct ml_event {
	ml_u64 timestamp_ns;
	ml_u64 address; /* returned or freed */
	ml_u64 size;
	ml_u64 key;
	ml_u64 old_address; /* of realloc and mremap, else 0 */
	ml_u32 pid;
	ml_u32 tid;
	ml_u32 function; /* enum ml_function */
	ml_s32 error;    /* errno-like: 0 = the call succeeded */
};

/* ---- the end ------------------------------------------------------------------------------------- */

/* The reason why the session stopped, or the class of an error. The host maps it to its exit code. */
enum ml_reason {
	ML_REASON_STOPPED = 1,       /* the host asked */
	ML_REASON_TARGET_EXIT = 2,   /* the target ended; status is its wait status */
	ML_REASON_INPUT_CLOSED = 3,  /* the host is gone */
	ML_REASON_TARGET_ERROR = 4,  /* the target cannot be used: exit code 4 */
	ML_REASON_TRACER_ERROR = 5,  /* the tracer cannot run here: exit code 5 */
	ML_REASON_USAGE_ERROR = 6,   /* the host sent something unusable: our bug */
};

struct ml_error { /* followed by the text: "what failed, with which datum (way out)" */
	ml_u32 reason; /* enum ml_reason */
	ml_u32 text_bytes;
};

struct ml_end {
	ml_u32 reason; /* enum ml_reason */
	ml_s32 status; /* wait status of the target, -1 = not known */
	ml_u64 timestamp_ns;
};

#define ML_ASSERT_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type " is " #size " bytes")
ML_ASSERT_SIZE(struct ml_block, 16);
ML_ASSERT_SIZE(struct ml_hello, 56);
ML_ASSERT_SIZE(struct ml_fixup, 16);
ML_ASSERT_SIZE(struct ml_evidence, 144);
ML_ASSERT_SIZE(struct ml_sparse_stack, 8);
ML_ASSERT_SIZE(struct ml_frame_chain, 8);
ML_ASSERT_SIZE(struct ml_stack_above, 8);
ML_ASSERT_SIZE(struct ml_live, 24);
ML_ASSERT_SIZE(struct ml_keys, 24);
ML_ASSERT_SIZE(struct ml_status, 200);
ML_ASSERT_SIZE(struct ml_maps, 16);
ML_ASSERT_SIZE(struct ml_mapping, 64);
ML_ASSERT_SIZE(struct ml_process, 40);
ML_ASSERT_SIZE(struct ml_event, 56);
ML_ASSERT_SIZE(struct ml_error, 8);
ML_ASSERT_SIZE(struct ml_end, 16);

#include "wire_hooks.h"
#include "wire_python.h"
#include "wire_recording.h"
#include "wire_lengths.h"

/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/* More of the wire format: a handler's second stack, and processes that are entered while they run. Like wire.h, which includes it. */
#pragma once

/* ---- the stack below a signal handler ----------------------------------------------------------- */

/*
 * The last part of a record if ML_EVIDENCE_INTERRUPTED is set: bytes of another stack, from the stack pointer upwards that a
 * signal found. Its handler ran on the thread's alternate stack, which is the slice. Never with ML_EVIDENCE_STACK_SPARSE
 * or ML_EVIDENCE_STACK_ABOVE.
 */
struct ml_interrupted_stack {
	ml_u64 stack_address;
	ml_u32 stack_bytes; /* multiple of 8, at most ML_STACK_BYTES_MAX */
	ml_u32 reserved;
};

/* ---- modules whose slots are patched (PLT hook) ------------------------------------------------- */

enum ml_hooked_flag {
	ML_HOOKED_MALFORMED = 1, /* its dynamic section or its relocations are not as they must be: not, or partly, read */
	ML_HOOKED_READ_ONLY = 2, /* slots in shared memory, or in memory that the kernel does not make writable */
	ML_HOOKED_NO_ROOM = 4, /* more slots than the table holds */
	ML_HOOKED_UNSETTLED = 8, /* slots that the loader had not finished with */
	ML_HOOKED_PROGRAM = 16, /* the program itself, not a library */
};

/*
 * One module, sent when it is first scanned and after each change. Calls through its slots are recorded from patched_ns
 * on; a module loaded by dlopen() has run its constructors between since_ns and patched_ns.
 */
struct ml_hooked {
	ml_u64 module; /* where its first segment begins */
	ml_u64 since_ns; /* 0 = it was loaded when the session began */
	ml_u64 patched_ns;
	ml_u32 n_slots; /* of the allocator's functions, patched to the shim */
	ml_u32 n_refused; /* that could not be patched */
	ml_u32 n_foreign; /* that lead to other functions of such a name */
	ml_u32 flags; /* enum ml_hooked_flag */
	ml_u32 pid;
	ml_u32 reserved;
	char name[80]; /* of its file, without folders; "" = unknown, usually the program */
};

/* ---- how long threads were stopped (attaching to a process) ---------------------------------- */

enum ml_stop_moment {
	ML_STOP_PREPARE = 1, /* to find room for moved code, before the session */
	ML_STOP_ATTACH = 2,
	ML_STOP_DETACH = 3,
};

enum ml_stopped {
	ML_STOPPED_ALL = 1, /* all threads, for inspection or a code change: the longest of the threads that resume together */
	ML_STOPPED_CALLER = 2, /* the thread that made the calls, from when it was asked to stop */
};

struct ml_stop {
	ml_u64 timestamp_ns; /* when the last thread resumed */
	ml_u64 duration_ns;
	ml_u32 pid;
	ml_u32 n_threads;
	ml_u16 moment; /* enum ml_stop_moment */
	ml_u16 stopped; /* enum ml_stopped */
	ml_u32 reserved;
};

/* ---- a command that is held at its end ---------------------------------------------------------- */

#define ML_EXIT_REGISTERS 34 /* arm64's; x86_64 has 27 */

/* The exiting thread while it is stopped. The registers of other threads are gone with these threads. */
struct ml_exit_stop {
	ml_u64 timestamp_ns;
	ml_u32 pid;
	ml_u32 tid;
	ml_u32 n_registers;
	ml_u32 reserved;
	ml_u64 stack_pointer;
	ml_u64 registers[ML_EXIT_REGISTERS]; /* general ones, in the order of the kernel's NT_PRSTATUS */
};

/* ---- a process whose memory was scanned (`memleakd scan`) --------------------------------------- */

/* First. STOPPED_THREADS are struct ml_exit_stop rows, one for each thread, of one that was stopped for it. */
struct ml_scan {
	ml_u64 timestamp_ns; /* when all threads were stopped */
	ml_u64 stopped_ns; /* from the first stop to the last leave; 0 = it was already held at its exit */
	ml_u64 scanned_bytes;
	ml_u32 n_threads;
	ml_u32 word_bytes; /* 4 or 8 */
};

/*
 * SCANNED: these, each followed by a bit for each word from `address` on (in whole u64, the first word the lowest bit), and by the
 * n_values words whose bit is set, as u64 without their tags: they may refer to writable memory of the process.
 */
struct ml_scanned {
	ml_u64 address;
	ml_u32 n_words;
	ml_u32 n_values;
};

/* ---- the high-water mark ------------------------------------------------------------------------- */

/*
 * Chunk of what the keys of a process held at its high-water mark; the latest holds. Then ml_u64 columns: key, bytes.
 * Not where a process counts samples, nor of several together.
 */
struct ml_high_water {
	ml_u64 timestamp_ns;
	ml_u64 mark; /* bytes held in all */
	ml_u64 bound_bytes; /* never was more held than so much above it */
	ml_u32 pid;
	ml_u32 count;
	ml_u32 last; /* 1 on the last chunk */
	ml_u32 reserved;
};

ML_ASSERT_SIZE(struct ml_interrupted_stack, 16);
ML_ASSERT_SIZE(struct ml_high_water, 40);
ML_ASSERT_SIZE(struct ml_exit_stop, 304);
ML_ASSERT_SIZE(struct ml_scan, 32);
ML_ASSERT_SIZE(struct ml_scanned, 16);
ML_ASSERT_SIZE(struct ml_hooked, 128);
ML_ASSERT_SIZE(struct ml_stop, 32);

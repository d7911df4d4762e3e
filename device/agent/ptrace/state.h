/* SPDX-License-Identifier: Apache-2.0 */
/* The registers of a stopped thread (ptrace(2)), and the frame that makes it call a function. One file per architecture. */
#pragma once

#include <sys/types.h>
#include <sys/user.h>

#include "wire.h"

/* The layout of NT_PRSTATUS. */
#ifdef __arm__
typedef struct user_regs ml_ptrace_registers;
#define ML_HAS_PTRACE_CALLS 0
#else
typedef struct user_regs_struct ml_ptrace_registers;
#define ML_HAS_PTRACE_CALLS 1
#endif

#define ML_VECTOR_BYTES_MAX 20480 /* AMX tiles: 11 KiB; SVE of 2048 bits: 17 KiB */
#define ML_FRAME_BYTES_MAX (ML_VECTOR_BYTES_MAX + 8192)
#define ML_CALL_ARGUMENTS 3

/* The state of a thread that a call changes. */
struct ml_ptrace_state {
	ml_ptrace_registers registers;
	ml_u64 signal_mask;
	ml_u32 vector_note, vector_bytes; /* NT_* of vectors[] */
	ml_u8 vectors[ML_VECTOR_BYTES_MAX];
};

/* Code in some library of the process, whatever its purpose there. */
struct ml_ptrace_code {
	ml_u64 trampoline;   /* calls rt_sigreturn: libc's, on arm64 the vdso's */
	ml_u64 keeps_result; /* saves a function's result before that call; 0: none, or not needed */
};

struct ml_ptrace_call {
	ml_u64 function;
	ml_u64 arguments[ML_CALL_ARGUMENTS];
	struct ml_ptrace_code code;
	ml_u64 stack; /* free below here */
};

/* Registers and frame at the entry of the function. */
struct ml_ptrace_entry {
	ml_ptrace_registers registers;
	ml_u64 address;       /* of the frame */
	ml_u64 frame_address; /* identifies the return */
};

/* Reads the state of a stopped thread. 0, or -1 with errno. */
int ml_ptrace_state_read(pid_t tid, struct ml_ptrace_state *state);
/* Writes the general registers last: until then a detached thread continues where it was. */
int ml_ptrace_state_write(pid_t tid, const struct ml_ptrace_state *state);

/* Bytes of a kernel register set (NT_*); -1 if the machine does not have it. */
ssize_t ml_ptrace_read_set(pid_t tid, int note, void *into, size_t bytes);
int ml_ptrace_write_set(pid_t tid, int note, const void *from, size_t bytes);

/* Reads the general registers of a stopped thread of any architecture, one per word; none if they are unreadable. */
struct ml_exit_stop ml_stopped_thread_read(pid_t pid, pid_t tid);

/* Whether a signal is pending for the thread or its process that is neither blocked nor ignored. */
bool ml_ptrace_has_pending_signal(pid_t tid);
/* Whether the process ignores the signal, by its choice or by default. */
bool ml_ptrace_ignores_signal(pid_t tid, int signal);

/* ---- of the architecture ---- */

struct ml_ptrace_frame {
	ml_u64 pc, sp, fp;
	ml_u64 link; /* the return address of a call, if it is in a register; 0: it is on the stack */
};

/* The register set (NT_*) that holds all of a thread's vector registers. */
int ml_ptrace_vector_note(pid_t tid);

struct ml_ptrace_frame ml_ptrace_frame_of(const ml_ptrace_registers *registers);

/*
 * Writes a signal frame into `frame`, as the kernel pushes before a handler: on returning into the trampoline the thread
 * restores `state` by itself, even if its tracer is gone. Returns the bytes.
 */
size_t ml_ptrace_call_frame(const struct ml_ptrace_state *state, const struct ml_ptrace_call *call, ml_u8 *frame,
			    struct ml_ptrace_entry *entry);

/* At the stop before a system call: whether it is the rt_sigreturn of the call with that frame. */
bool ml_ptrace_is_return(pid_t tid, const ml_ptrace_registers *registers, ml_u64 frame_address);

/* The return value of the function, at that stop. */
ml_u64 ml_ptrace_result(const ml_ptrace_registers *registers);

/* Skips that system call; the thread would then reach the trampoline, and so the system call, again. */
int ml_ptrace_skip_system_call(pid_t tid, ml_ptrace_registers *registers, ml_u64 trampoline);

/* The system call from which a stopped thread returns, as its registers have it. */
struct ml_ptrace_system_call {
	ml_u64 number, result;
	ml_u64 address; /* of its instruction */
	ml_u64 arguments[4]; /* the first ones */
};

struct ml_ptrace_system_call ml_ptrace_system_call_of(const ml_ptrace_registers *registers);

/* The thread makes the call once it runs. */
void ml_ptrace_call_again(ml_ptrace_registers *registers, const struct ml_ptrace_system_call *call);

/*
 * Whether the result leaves all arguments, and overwrites the number. Elsewhere it overwrites the first argument, and code may rely on
 * the number.
 */
#ifdef __x86_64__
#define ML_PTRACE_KEEPS_ARGUMENTS 1
#else
#define ML_PTRACE_KEEPS_ARGUMENTS 0
#endif

/* The thread pointer, 0 if unknown. */
ml_u64 ml_ptrace_thread_pointer(pid_t tid, const ml_ptrace_registers *registers);

/* Whether the hardware checks return addresses against a second stack, which has none for an injected call. */
bool ml_ptrace_has_shadow_stack(pid_t tid);

/* Code to search for struct ml_ptrace_code; 0 bytes: none is needed. */
extern const ml_u8 ml_ptrace_trampoline_bytes[], ml_ptrace_keeper_bytes[];
extern const size_t ml_ptrace_n_trampoline_bytes, ml_ptrace_n_keeper_bytes;

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that forbids itself system calls (seccomp) is killed for the first of them that the shim makes. So each filter is
 * read before the kernel gets it, and what it does not allow for certain is never called again: ml_syscall() returns -ENOSYS,
 * as a kernel without the call does.
 */
#pragma once

#include "wire.h"

/* The system calls that the shim makes after its start. The report names those that are forbidden. */
#define ML_PROCESS_CALLS(X) X(getpid) X(gettid) X(tgkill) X(prlimit64) X(getrandom) X(sigaltstack)
#define ML_MEMORY_CALLS(X) X(process_vm_readv) X(mincore) X(madvise) X(mprotect) X(munmap) X(mlock) X(munlock)
#define ML_FILE_CALLS(X) X(openat) X(read) X(pread64) X(close)
#define ML_WAIT_CALLS(X) X(ppoll) X(sched_yield) X(clock_gettime)
/* Those of a forked child, or of a new program, that joins the session. */
#define ML_JOINING_CALLS(X) X(getppid) X(socket) X(connect) X(getsockopt) X(setsockopt) X(sendmsg) X(memfd_create) X(fcntl)
#define ML_OWN_CALLS_EACH(X) ML_PROCESS_CALLS(X) ML_MEMORY_CALLS(X) ML_FILE_CALLS(X) ML_WAIT_CALLS(X) ML_JOINING_CALLS(X)

enum ml_own_call {
#define NUMBER(name) ML_CALL_##name,
	ML_OWN_CALLS_EACH(NUMBER)
#undef NUMBER
		ML_OWN_CALLS
};

#define ML_SYSTEM_CALLS 512u /* more than any architecture numbers */

struct ml_sandbox {
	ml_u32 is_on;
	ml_u32 allowed[ML_SYSTEM_CALLS / 32];
	ml_u32 *own_pid; /* what getpid() returned; 0 in a forked child */
};

extern struct ml_sandbox ml_sandbox __attribute__((visibility("hidden")));

static inline int ml_sandbox_forbids(long number)
{
	return __builtin_expect(__atomic_load_n(&ml_sandbox.is_on, __ATOMIC_ACQUIRE), 0) &&
	       ((unsigned long)number >= ML_SYSTEM_CALLS || !(ml_sandbox.allowed[number / 32] >> number % 32 & 1));
}

/* The result of a system call that is forbidden, as ml_syscall() returns it. */
long ml_sandbox_result(long number);

/* Bits of enum ml_own_call: the calls that are not made any more. */
ml_u64 ml_sandbox_forbidden(void);

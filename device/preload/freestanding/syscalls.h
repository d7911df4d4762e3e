/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the shim has in place of a libc: system calls, memory, clocks, atomics, saved registers. System calls are made
 * here, because the shim must not set errno, must not be cancelled and must not depend on the target's libc. They
 * return -errno.
 */
#pragma once

#include <asm/errno.h> /* kernel headers, which need no libc */
#include <asm/unistd.h>

#include "wire.h"
#include "preload/freestanding/sandbox.h"

#if defined(__x86_64__)

static inline long ml_kernel_call(long n, long a, long b, long c, long d, long e, long f)
{
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

static inline unsigned long ml_thread_pointer(void)
{
	unsigned long pointer;

	/* The word at %fs:0 is the thread pointer itself (psABI, TLS variant II). */
	__asm__("mov %%fs:0, %0" : "=r"(pointer));
	return pointer;
}

#elif defined(__aarch64__)

static inline long ml_kernel_call(long n, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}

static inline unsigned long ml_thread_pointer(void)
{
	unsigned long pointer;

	__asm__("mrs %0, tpidr_el0" : "=r"(pointer));
	return pointer;
}

#elif defined(__arm__)

static inline long ml_kernel_call(long n, long a, long b, long c, long d, long e, long f)
{
	register long r0 __asm__("r0") = a;
	register long r1 __asm__("r1") = b;
	register long r2 __asm__("r2") = c;
	register long r3 __asm__("r3") = d;
	register long r4 __asm__("r4") = e;
	register long r5 __asm__("r5") = f;

	/* r7 is Thumb's frame pointer and cannot be an operand, so it is saved by hand. */
	__asm__ volatile("push {r7}\n\tmov r7, %1\n\tsvc 0\n\tpop {r7}"
			 : "+r"(r0)
			 : "r"(n), "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5)
			 : "memory");
	return r0;
}

static inline unsigned long ml_thread_pointer(void)
{
	unsigned long pointer;

	__asm__("mrc p15, 0, %0, c13, c0, 3" : "=r"(pointer));
	return pointer;
}

#else
#error "an architecture without system calls here"
#endif

/* The system call, unless the program forbade it to itself: sandbox.h. */
static inline long ml_syscall(long n, long a, long b, long c, long d, long e, long f)
{
	return ml_sandbox_forbids(n) ? ml_sandbox_result(n) : ml_kernel_call(n, a, b, c, d, e, f);
}

#define ML_SYSCALL0(name) ml_syscall(__NR_##name, 0, 0, 0, 0, 0, 0)
#define ML_SYSCALL1(name, a) ml_syscall(__NR_##name, (long)(a), 0, 0, 0, 0, 0)
#define ML_SYSCALL2(name, a, b) ml_syscall(__NR_##name, (long)(a), (long)(b), 0, 0, 0, 0)
#define ML_SYSCALL3(name, a, b, c) ml_syscall(__NR_##name, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define ML_SYSCALL4(name, a, b, c, d) ml_syscall(__NR_##name, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define ML_SYSCALL6(name, a, b, c, d, e, f) \
	ml_syscall(__NR_##name, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* Not `result < 0`: addresses in the upper half of a 32-bit address space are negative, too. */
static inline int ml_is_error(long result)
{
	return result < 0 && result > -4096;
}

/* 0 where a sandbox refuses the call. */
static inline ml_u32 ml_own_tid(void)
{
	long tid = ML_SYSCALL0(gettid);

	return ml_is_error(tid) ? 0 : (ml_u32)tid;
}

/* openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC), whose values are the same on all three architectures. */
static inline long ml_open_to_read(const char *path)
{
	return ML_SYSCALL4(openat, -100, path, 02000000, 0);
}

/* The maps of the process. Those of its first thread, /proc/self/maps, are empty once that has ended. */
static inline long ml_open_maps(void)
{
	long fd = ml_open_to_read("/proc/self/maps");
	char byte;

	if (fd < 0 || ml_syscall(__NR_pread64, fd, (long)&byte, 1, 0, 0, 0) != 0)
		return fd;
	ML_SYSCALL1(close, fd);
	return ml_open_to_read("/proc/thread-self/maps");
}

/* Reads our own memory, which another thread may unmap meanwhile. Returns the number of bytes read or -errno. */
static inline long ml_read_memory(void *to, ml_u64 from, unsigned long bytes)
{
	struct { /* struct iovec */
		void *base;
		unsigned long bytes;
	} here = { to, bytes }, there = { (void *)(unsigned long)from, bytes };

	return ML_SYSCALL6(process_vm_readv, ML_SYSCALL0(getpid), &here, 1, &there, 1, 0);
}

/* Beyond `ulimit -f` (RLIMIT_FSIZE), write() and ftruncate() raise SIGXFSZ, which would end the process. */
static inline int ml_may_write_file(ml_u64 bytes)
{
	ml_u64 limit[2] = { 0, 0 };

	return ML_SYSCALL4(prlimit64, 0, 1, 0, limit) < 0 || limit[0] >= bytes;
}

/* Reads the beginning of a file by one read(). Returns the number of bytes or -errno. */
static inline long ml_read_file(const char *path, char *to, unsigned long room)
{
	long fd = ml_open_to_read(path), n = fd < 0 ? fd : ML_SYSCALL3(read, fd, to, room);

	if (fd >= 0)
		ML_SYSCALL1(close, fd);
	return n;
}

/*
 * Android's seccomp filter kills an app for system calls that bionic does not make (libc/SYSCALLS.TXT,
 * libc/SECCOMP_*.TXT). On 32-bit systems it allows only the newer of two.
 */
#ifdef __NR_geteuid32 /* the older one returns 16 bits */
#define ML_GETEUID() ML_SYSCALL0(geteuid32)
#else
#define ML_GETEUID() ML_SYSCALL0(geteuid)
#endif

#ifdef __NR_ftruncate64 /* 64-bit values take pairs of registers that begin with an even one (Arm EABI) */
#define ML_FTRUNCATE(fd, bytes) ml_syscall(__NR_ftruncate64, (long)(fd), 0, (long)(bytes), (long)((ml_u64)(bytes) >> 32), 0, 0)
#else
#define ML_FTRUNCATE(fd, bytes) ML_SYSCALL2(ftruncate, fd, bytes)
#endif

#ifdef __NR_mmap2 /* offset in pages; always 0 here */
#define ML_MMAP(address, bytes, protection, flags, fd) ML_SYSCALL6(mmap2, address, bytes, protection, flags, fd, 0)
#else
#define ML_MMAP(address, bytes, protection, flags, fd) ML_SYSCALL6(mmap, address, bytes, protection, flags, fd, 0)
#endif

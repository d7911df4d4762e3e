/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds what handlers on the alternate stack have interrupted, by signal_stack.c, and compares with what the kernel gave the
 * handlers. Memory is read here by a plain copy: emulators have no process_vm_readv(2).
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define ml_read_memory ml_read_memory_by_the_kernel
#include "preload/freestanding/syscalls.h"
#undef ml_read_memory

static long ml_read_memory(void *to, ml_u64 from, unsigned long bytes)
{
	memcpy(to, (const void *)(unsigned long)from, bytes);
	return (long)bytes;
}

#include "preload/recorder/signal_stack.c"

#define STACK_BYTES 65536

struct ml_sandbox ml_sandbox;

long ml_sandbox_result(long number)
{
	return -number;
}

static int is_busy; /* the thread's scratch memory */

int ml_thread_enter(const struct ml_view *view, struct ml_thread *thread)
{
	(void)view, (void)thread;
	return !is_busy;
}

void ml_thread_leave(const struct ml_view *view, struct ml_thread *thread)
{
	(void)view, (void)thread;
}

static char *stack;

int ml_stack_bounds_of_alternate(ml_u64 stack_pointer, ml_u64 *low, ml_u64 *high)
{
	*low = (unsigned long)stack;
	*high = *low + STACK_BYTES;
	return stack_pointer - *low < STACK_BYTES;
}

void ml_stack_bounds_search(const struct ml_view *view, struct ml_thread *thread, struct ml_caller *caller)
{
	(void)view, (void)thread;
	caller->readable_end = ~0ull;
}

#if defined(__x86_64__)
#define PC gregs[REG_RIP]
#define SP gregs[REG_RSP]
#define FP gregs[REG_RBP]
#elif defined(__aarch64__)
#define PC pc
#define SP sp
#define FP regs[29]
#else
#define PC arm_pc
#define SP arm_sp
#define FP arm_fp
#endif
#define SAVED(context, name) ((ml_u64)(context)->uc_mcontext.name)

static struct ml_thread thread;
static ucontext_t *outermost;
static int n_found;

static void on_signal(int number, siginfo_t *information, void *context)
{
	ucontext_t copy = *(ucontext_t *)context; /* looks like a frame */
	struct ml_caller caller = { .stack_pointer = (unsigned long)&copy & ~15ul };
	struct ml_interrupted room;
	ml_u64 fp, begin = (unsigned long)context;

#if defined(__aarch64__)
	begin = (unsigned long)information;
#endif
	is_busy = number != SIGUSR1;
	if (number == SIGUSR1)
		outermost = context;
	fp = SAVED(outermost, FP);
	ml_signal_stack_find_foreign(NULL, &thread, &caller, &room);
	n_found += caller.interrupted == &room && room.caller.return_address == SAVED(outermost, PC) + 1 &&
		   room.caller.stack_pointer == SAVED(outermost, SP) &&
		   room.caller.frame_pointer == (fp < room.caller.stack_pointer ? 0 : fp) &&
		   (number != SIGUSR1 || room.begin == begin) &&
		   caller.readable_end > (unsigned long)outermost && caller.readable_end <= (unsigned long)stack + STACK_BYTES;
	if (number == SIGUSR1)
		raise(SIGUSR2);
	__asm__ volatile("" ::"r"(&copy) : "memory");
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_ONSTACK | SA_SIGINFO };

	stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sigaltstack(&(stack_t){ .ss_sp = stack, .ss_size = STACK_BYTES }, NULL);
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGUSR2, &action, NULL);
	raise(SIGUSR1);
	printf("%d found\n", n_found);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stacks as real programs have them. MODE [waits]: runs it ROUNDS times, after a line on stdin if it waits. Every block is of
 * take() or take_above_locals(), and main or a thread's start is at the end of its stack.
 */
#include "../../support/programs/libc.h"
#include <ucontext.h>

#define ALONE __attribute__((noipa))
#define ROUNDS 5
#define BLOCK_BYTES 1500
#define FIBERS 6
#define STACK_BYTES 0x20000
#define GUARD_BYTES 0x4000
#define ALIGNED 0x4000 /* a page, or several */

static void *volatile kept;

ALONE static void take(void)
{
	void **block = malloc(BLOCK_BYTES);

	*block = kept;
	kept = block;
}

/* The stack pointer is at the begin of a page of which nothing was written: locals that are filled later. */
ALONE static void take_above_locals(void)
{
	volatile size_t least = 16;
	char *first = alloca(least), *second = alloca(least);
	size_t more = (size_t)(first - second) - least; /* that the compiler adds */
	char *locals = alloca((((uintptr_t)second - more) & (ALIGNED - 1)) + 2 * ALIGNED);
	void **block = malloc(BLOCK_BYTES);

	*block = kept;
	kept = block;
	__asm__ volatile("" ::"r"(locals) : "memory");
}

/* Frames of which only the innermost bytes are written. */
ALONE static void spread(size_t bytes, int depth)
{
	char *room = alloca(bytes);

	memset(room, 1, 16);
	if (depth)
		spread(bytes, depth - 1);
	else
		take();
	__asm__ volatile("" ::"r"(room) : "memory");
}

ALONE static void deep(int depth)
{
	if (depth)
		deep(depth - 1);
	else
		take();
	__asm__ volatile("");
}

/* ---- holes: pages of a thread's stack that were never touched ------------------------------------ */

ALONE static void several_holes(void)
{
	spread(20000, 2);
	__asm__ volatile("");
}

ALONE static void hole_beyond_a_slice(void)
{
	spread(150000, 0);
	__asm__ volatile("");
}

ALONE static void hole_beyond_a_walk(void)
{
	spread(400000, 1);
	__asm__ volatile("");
}

ALONE static void another_beyond_a_walk(void)
{
	spread(400000, 1);
	__asm__ volatile("");
}

static void *in_thread(void *function)
{
	((void (*)(void))function)();
	return NULL;
}

/* Each on a stack that was mapped just now. */
static void thread_with(void (*function)(void))
{
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setstack(&attributes,
			      mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
			      1 << 20);
	pthread_create(&thread, &attributes, in_thread, (void *)function);
	pthread_join(thread, NULL);
}

static void turn_holes(void)
{
	several_holes();
	hole_beyond_a_slice();
	hole_beyond_a_walk();
	another_beyond_a_walk();
}

static void turn_threads(void)
{
	thread_with(several_holes);
	thread_with(hole_beyond_a_slice);
	thread_with(take_above_locals);
}

/* ---- recursion ----------------------------------------------------------------------------------- */

#define DEPTH 5000

ALONE static void odd(int depth);

ALONE static void even(int depth)
{
	if (depth)
		odd(depth - 1);
	else
		take();
	__asm__ volatile("");
}

ALONE static void odd(int depth)
{
	if (depth)
		even(depth - 1);
	else
		take();
	__asm__ volatile("");
}

/* Deeper from round to round. */
static void turn_recursion(void)
{
	static int more;

	deep(DEPTH + more);
	even(DEPTH + more);
	more += 2;
}

/* ---- several stacks of one thread ---------------------------------------------------------------- */

static ucontext_t home, fibers[FIBERS];

ALONE static void in_fiber(int number)
{
	for (;;) {
		if (number % 2)
			spread(30000, 2);
		else
			deep(3);
		swapcontext(&fibers[number], &home);
	}
}

/* Neighbours with a guard between them, in no order. */
static void make_fibers(void)
{
	static char *stacks;

	if (stacks)
		return;
	stacks = mmap(NULL, FIBERS * (STACK_BYTES + GUARD_BYTES), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < FIBERS; i++) {
		char *stack = stacks + (size_t)(i * 5 % FIBERS) * (STACK_BYTES + GUARD_BYTES);

		mprotect(stack, STACK_BYTES, PROT_READ | PROT_WRITE);
		getcontext(&fibers[i]);
		fibers[i].uc_stack.ss_sp = stack;
		fibers[i].uc_stack.ss_size = STACK_BYTES;
		makecontext(&fibers[i], (void (*)(void))in_fiber, 1, i);
	}
}

static void turn_fibers(void)
{
	make_fibers();
	for (int i = 0; i < FIBERS; i++) {
		swapcontext(&home, &fibers[i]);
		several_holes();
	}
}

/* ---- a signal's stack above another -------------------------------------------------------------- */

static void on_signal(int number)
{
	(void)number;
	deep(3);
}

/* Interrupted in its turn, on the same stack. */
static void on_first_signal(int number)
{
	(void)number;
	raise(SIGUSR1);
	__asm__ volatile("");
}

#if defined(__x86_64__)
#define SAVED_SP(context) (*(uintptr_t *)&(context)->uc_mcontext.gregs[REG_RSP])
#else
#define SAVED_SP(context) ((context)->uc_mcontext.sp)
#endif

/* What it has interrupted is at an address that is no stack. */
static void on_forged_signal(int number, siginfo_t *information, void *frame)
{
	uintptr_t *saved = (uintptr_t *)&SAVED_SP((ucontext_t *)frame), own = *saved;
	const uintptr_t forged[] = { 0, 8, own + 1, own - (400 << 10), (uintptr_t)on_forged_signal, 1ul << 46, ~7ul };

	(void)number, (void)information;
	for (size_t i = 0; i < sizeof(forged) / sizeof(forged[0]); i++) {
		*saved = forged[i];
		take();
	}
	*saved = own;
}

/* Both at the same depth. */
ALONE static void from_here(int number)
{
	raise(number);
	__asm__ volatile("");
}

ALONE static void from_there(int number)
{
	raise(number);
	__asm__ volatile("");
}

static ucontext_t raising;

static void in_raising_fiber(void)
{
	for (;;) {
		from_here(SIGUSR1);
		swapcontext(&raising, &home);
	}
}

static void make_raising_fiber(void)
{
	getcontext(&raising);
	raising.uc_stack.ss_sp = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	raising.uc_stack.ss_size = STACK_BYTES;
	makecontext(&raising, in_raising_fiber, 0);
}

/* By turns in a mapping of its own, and in that of the first thread's control block, below that. */
static void alternate_stack(void)
{
	static __thread char own[STACK_BYTES];
	static int round;
	stack_t alternate = { .ss_sp = own, .ss_size = sizeof(own) };

	if (round++ % 2)
		alternate.ss_sp = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sigaltstack(&alternate, NULL);
	sigaction(SIGURG, &(struct sigaction){ .sa_sigaction = on_forged_signal, .sa_flags = SA_ONSTACK | SA_SIGINFO }, NULL);
	sigaction(SIGUSR1, &(struct sigaction){ .sa_handler = on_signal, .sa_flags = SA_ONSTACK }, NULL);
	sigaction(SIGUSR2, &(struct sigaction){ .sa_handler = on_first_signal, .sa_flags = SA_ONSTACK }, NULL);
}

static void turn_forged(void)
{
	alternate_stack();
	raise(SIGURG);
}

static void turn_signal(void)
{
	alternate_stack();
	from_here(SIGUSR1);
	from_there(SIGUSR1);
	from_there(SIGUSR2);
	if (!raising.uc_stack.ss_sp)
		make_raising_fiber();
	swapcontext(&home, &raising);
	several_holes();
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*turn)(void);
	} modes[] = { { "holes", turn_holes },
		      { "threads", turn_threads },
		      { "fibers", turn_fibers },
		      { "signal", turn_signal },
		      { "forged", turn_forged },
		      { "recursion", turn_recursion } };

	if (argc > 2 && puts("ready") > 0 && !fflush(stdout) && getchar() == EOF)
		return 1;
	for (size_t i = 0; argc > 1 && i < sizeof(modes) / sizeof(modes[0]); i++) {
		if (strcmp(argv[1], modes[i].name))
			continue;
		for (int round = 0; round < ROUNDS; round++)
			modes[i].turn();
		return 0;
	}
	return 2;
}

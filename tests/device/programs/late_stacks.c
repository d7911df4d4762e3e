/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stacks longer than a slice, that are gone or another's a moment after the call: the way to the same frames leads through
 * parent_a (blocks of 1000 bytes) or parent_b (2000). MODE ROUNDS; the last blocks of each, of 3000 and 4000 bytes, are
 * allocated by a thread that then stands still.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#define ALONE __attribute__((noipa))
#define ROOM 30000
#define STILL_US 1000000

static void *volatile kept;
static jmp_buf out;
static int jumps;

ALONE static void take(size_t size)
{
	void **block = malloc(size);

	*block = kept;
	kept = block;
	if (size >= 3000)
		usleep(STILL_US);
	if (jumps)
		longjmp(out, 1);
}

/* The frame that a slice ends in. Its surroundings are the same for every caller. */
ALONE static void middle(size_t size)
{
	char *room = alloca(ROOM);

	memset(room, 1, ROOM);
	take(size);
	__asm__ volatile("" ::"r"(room) : "memory");
}

/* depth frames of one function */
ALONE static void again(size_t size, int depth)
{
	if (depth)
		again(size, depth - 1);
	else
		middle(size);
	__asm__ volatile("");
}

ALONE static void parent_a(size_t size)
{
	again(size, 3);
	__asm__ volatile("");
}

ALONE static void parent_b(size_t size)
{
	again(size, 3);
	__asm__ volatile("");
}

static void by_parent(size_t size)
{
	(size / 1000 % 2 ? parent_a : parent_b)(size);
	__asm__ volatile("");
}

static void *in_thread(void *size)
{
	by_parent((size_t)size);
	return NULL;
}

static void turn_calls(size_t a)
{
	parent_a(a);
	parent_b(a + 1000);
}

/* A thread that ended, and the next one on its stack. */
static void turn_threads(size_t a)
{
	pthread_t thread;

	for (size_t size = a; size <= a + 1000; size += 1000) {
		pthread_create(&thread, NULL, in_thread, (void *)size);
		pthread_join(thread, NULL);
	}
}

static void turn_jumps(size_t a)
{
	jumps = 1;
	for (volatile size_t size = a; size <= a + 1000; size += 1000)
		if (!setjmp(out))
			by_parent(size);
	jumps = 0;
}

static void on_stack(void (*function)(size_t), size_t size)
{
	static char stack[4 * ROOM] __attribute__((aligned(4096)));
	ucontext_t here, there;

	getcontext(&there);
	there.uc_stack.ss_sp = stack;
	there.uc_stack.ss_size = sizeof(stack);
	there.uc_link = &here;
	makecontext(&there, (void (*)(void))function, 1, size);
	swapcontext(&here, &there);
}

/* Two coroutines that take turns on one stack. */
static void turn_coroutines(size_t a)
{
	on_stack(parent_a, a);
	on_stack(parent_b, a + 1000);
}

/* One function calls itself: frames alike, and more or fewer of them. */
static void turn_recursion(size_t a)
{
	for (int depth = 0; depth < 8; depth++)
		again(a + (size_t)depth, 40 + depth);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*turn)(size_t);
	} modes[] = {
		{ "calls", turn_calls },	   { "threads", turn_threads },	    { "jumps", turn_jumps },
		{ "coroutines", turn_coroutines }, { "recursion", turn_recursion },
	};

	for (size_t i = 0; argc == 3 && i < sizeof(modes) / sizeof(modes[0]); i++) {
		if (strcmp(argv[1], modes[i].name))
			continue;
		for (int round = atoi(argv[2]); round; round--)
			modes[i].turn(1000);
		modes[i].turn(3000);
		return 0;
	}
	return 2;
}

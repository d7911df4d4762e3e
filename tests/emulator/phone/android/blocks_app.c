// SPDX-License-Identifier: Apache-2.0
// The library of an app that plants, in each run of its activity, one block of every kind of reachability, each of a size
// (a prime) that names its case. Compiled without optimisation; frames that held pointers are wiped.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 512, WIPED_BYTES = 16384 };

static void *reachable[ROUNDS], *inside[ROUNDS];
static uintptr_t tagged[ROUNDS];

__attribute__((noinline)) static void **make(size_t size)
{
	return calloc(1, size);
}

__attribute__((noinline)) static void plant(unsigned int round)
{
	void **head;

	make(10007); // definitely lost
	head = make(10009); // definitely lost, and what only it leads to: indirectly
	*head = make(10037);
	inside[round] = (char *)make(10039) + 400; // possibly lost: only its inside is referred to
	reachable[round] = head = make(10061); // still reachable, and what it leads to
	*head = make(10067);
	// Still reachable: a pointer with a tag in its top byte, as Android 11 and later give them on arm64 (heap tagging).
	tagged[round] = (uintptr_t)make(10069);
#ifdef __aarch64__
	tagged[round] |= (uintptr_t)0xb4 << 56;
#endif
}

__attribute__((noinline)) static void wipe(void)
{
	volatile char stack[WIPED_BYTES];

	memset((char *)stack, 0, sizeof(stack));
}

__attribute__((visibility("default"))) int main(int argc, char **argv)
{
	static unsigned int round;

	(void)argc, (void)argv;
	if (round < ROUNDS)
		plant(round++);
	wipe();
	return 0;
}

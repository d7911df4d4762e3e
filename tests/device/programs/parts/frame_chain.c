// SPDX-License-Identifier: Apache-2.0
/* The walk over frame records against what each function of a recursion says of its own caller. Needs no C library; exits
 * with the number of the first case that failed, 100 and more: a frame, or with 0. */
#include <stddef.h>
#include <stdint.h>

#include "preload/stacks/frame_chain.h"
#include "preload/freestanding/syscalls.h"

#define DEPTH 20

static uintptr_t expected[DEPTH + 2];
static struct ml_memo memo;

/* Words that the walk must not follow: whether it ends there as it should. */
static int ends_so(ml_u64 *stack, ml_u64 frame, ml_u32 n_frames, ml_u32 end)
{
	struct ml_caller caller = { 0x401000, (uintptr_t)stack, 0, (uintptr_t)(stack + 8), (uintptr_t)(stack + 8) };
	struct ml_chain chain = ml_chain_begin(&caller, frame, 0xffffull << 48, NULL);

	while (ml_chain_next(&chain))
		;
	return chain.n_frames == n_frames && chain.end == end;
}

/* A return address that is signed in its upper bits; on 32 bits there are none. */
static int takes_signature_off(void)
{
	ml_u64 stack[4] = { 0, 0x5a00000000402000 };
	struct ml_caller caller = { 0x401000, (uintptr_t)stack, 0, (uintptr_t)(stack + 4), (uintptr_t)(stack + 4) };
	struct ml_chain chain = ml_chain_begin(&caller, (uintptr_t)stack, 0xffffull << 48, NULL);

	return sizeof(uintptr_t) == 4 || ml_chain_next(&chain) == 0x402000;
}

static int find_wrong_end(void)
{
	uintptr_t words[16] __attribute__((aligned(16))) = { 0 };
	ml_u64 *stack = (ml_u64 *)words;
	uintptr_t here = (uintptr_t)words, word = sizeof(word), beyond = (uintptr_t)(stack + 8);

	if (!ends_so(stack, 0, 0, 0))
		return 1; /* no frame pointer */
	if (!ends_so(stack, here - word, 0, 4) || !ends_so(stack, here + 1, 0, 4))
		return 2; /* below the stack; not a word's address */
	if (!ends_so(stack, beyond, 0, 3) || !ends_so(stack, beyond - word, 0, 3))
		return 3; /* beyond the stack; half a record */
	words[2] = here;
	words[3] = 0x402000;
	if (!ends_so(stack, here + 2 * word, 1, 4))
		return 4; /* a record that leads back */
	words[2] = here + 2 * word;
	if (!ends_so(stack, here + 2 * word, 1, 4))
		return 5; /* a record that leads to itself */
	words[2] = here + 4 * word;
	words[5] = 0;
	if (!ends_so(stack, here + 2 * word, 1, 0))
		return 6; /* a return address of 0 */
	words[5] = 0x402001;
	words[4] = here + 6 * word;
	if (!ends_so(stack, here + 2 * word, 2, word == 4 ? 2 : 0))
		return 7; /* code of the other instruction set */
	return takes_signature_off() ? 0 : 8;
}

/* The number of the first frame that is not the one expected, 0 = none. */
__attribute__((noinline)) static int look(void)
{
	uintptr_t frame = (uintptr_t)__builtin_frame_address(0), *record = (uintptr_t *)frame;
	struct ml_caller caller = {
		.return_address = record[1],
		.stack_pointer = frame,
		.readable_end = frame + 65536,
		.stack_end = frame + 65536,
	};
	struct ml_chain chain = ml_chain_begin(&caller, record[0], 0, &memo);

	for (int i = 1; i <= DEPTH; i++)
		if (ml_chain_next(&chain) != expected[DEPTH + 1 - i])
			return 100 + i;
	return memo.n_offsets < 2 * DEPTH ? 99 : 0;
}

__attribute__((noinline)) static int descend(int depth)
{
	volatile int room[7] = { depth };
	int wrong;

	expected[depth + 1] = (uintptr_t)__builtin_return_address(0);
	wrong = depth + 1 < DEPTH ? descend(depth + 1) : look();
	return room[0] == depth ? wrong : 98;
}

#if defined(__x86_64__)
__attribute__((force_align_arg_pointer))
#endif
void _start(void)
{
	int wrong = descend(0);

	if (!wrong)
		wrong = find_wrong_end();
	for (;;)
		ML_SYSCALL1(exit_group, wrong);
}

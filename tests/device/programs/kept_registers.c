// SPDX-License-Identifier: Apache-2.0
/*
 * malloc() and free() that change no register but rax, and a caller that relies on it, as compilers do where they see both. For
 * each line of standard input one call of each with all registers filled: "kept", or "lost".
 */
#include "../../support/programs/libc.h"

#define N_GENERAL 8
#define N_VECTORS 16

struct registers {
	uint64_t general[N_GENERAL]; /* rcx rdx rsi rdi r8 … r11 */
	uint8_t vectors[N_VECTORS][16];
};

char heap[1 << 20];
char *next_block __attribute__((visibility("hidden"))) = heap;

__asm__(".text\n.globl malloc\n.hidden malloc\n.type malloc, @function\nmalloc:\n"
	"mov next_block(%rip), %rax\n"
	"addq $64, next_block(%rip)\n"
	"ret\n.size malloc, . - malloc\n"
	".globl free\n.hidden free\n.type free, @function\nfree:\n"
	"nopw 0(%rax,%rax,1)\nxor %eax, %eax\nret\n.size free, . - free\n"
	/* call_with(before, after, function): the function's result */
	".globl call_with\n.type call_with, @function\ncall_with:\n"
	"push %rbx\npush %r12\npush %r13\n"
	"mov %rdi, %rbx\nmov %rsi, %r12\nmov %rdx, %rax\n"
	"mov (%rbx), %rcx\nmov 8(%rbx), %rdx\nmov 16(%rbx), %rsi\nmov 24(%rbx), %rdi\n"
	"mov 32(%rbx), %r8\nmov 40(%rbx), %r9\nmov 48(%rbx), %r10\nmov 56(%rbx), %r11\n"
	".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\nmovups 64+16*\\n(%rbx), %xmm\\n\n.endr\n"
	"call *%rax\n"
	"mov %rcx, (%r12)\nmov %rdx, 8(%r12)\nmov %rsi, 16(%r12)\nmov %rdi, 24(%r12)\n"
	"mov %r8, 32(%r12)\nmov %r9, 40(%r12)\nmov %r10, 48(%r12)\nmov %r11, 56(%r12)\n"
	".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\nmovups %xmm\\n, 64+16*\\n(%r12)\n.endr\n"
	"pop %r13\npop %r12\npop %rbx\nret\n.size call_with, . - call_with\n");

void *malloc(size_t size);
void free(void *block);
void *call_with(const struct registers *before, struct registers *after, void *function);

static int keeps(void *function, uint64_t argument, void **result)
{
	struct registers before, after;

	memset(&before, 0xa5, sizeof(before));
	for (int i = 0; i < N_VECTORS; i++)
		memset(before.vectors[i], 0x10 + i, 16);
	for (int i = 0; i < N_GENERAL; i++)
		before.general[i] = 0x1111111111111111ull * (uint64_t)(i + 1);
	before.general[3] = argument;
	*result = call_with(&before, &after, function);
	return !memcmp(&before, &after, sizeof(before));
}

int main(void)
{
	static const char kept[] = "kept\n", lost[] = "lost\n";
	void *block, *nothing;
	char order;

	if (write(1, "ready\n", 6) != 6)
		return 1;
	while (read(0, &order, 1) == 1) {
		int are_kept = keeps(malloc, 48, &block);

		are_kept &= order == 'm' || keeps(free, (uint64_t)block, &nothing);
		if (write(1, are_kept ? kept : lost, 5) != 5)
			return 1;
	}
	return 0;
}

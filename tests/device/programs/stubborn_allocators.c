/*
 * Allocators whose first instructions no jump may take the place of, each in functions of its own prefix. Written out, so that
 * no compiler makes something else of them.
 *   short_   one instruction of three bytes, and the end
 *   loop_    its own body jumps back to behind its first instruction
 */
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

void *short_malloc(size_t size);
void short_free(void *block);
void *loop_malloc(size_t size);
void loop_free(void *block);

#define FUNCTION(name, body)                                                                                    \
	__asm__(".text\n.globl " #name "\n.type " #name ", @function\n.p2align 4\n" #name ":\n" body "\n.size " #name \
		", . - " #name "\n")

FUNCTION(short_malloc, "push %rdi\n\tpop %rax\n\tret");
FUNCTION(short_free, "ret");
FUNCTION(loop_malloc, "mov %edi, %eax\n1:\tdec %eax\n\ttest %eax, %eax\n\tjg 1b\n\tmov %rdi, %rax\n\tret");
FUNCTION(loop_free, "mov %edi, %eax\n1:\tdec %eax\n\ttest %eax, %eax\n\tjg 1b\n\tmov %rdi, %rax\n\tret");

int main(void)
{
	size_t right = 0;
	char byte;

	puts("ready");
	fflush(stdout);
	while (read(0, &byte, 1) == 1 && byte != 'x')
		right += (size_t)short_malloc(16) == 16 && (size_t)loop_malloc(16) == 16;
	short_free(NULL);
	loop_free(NULL);
	printf("unharmed, %zu\n", right);
	return 0;
}

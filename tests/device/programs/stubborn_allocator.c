/* An allocator whose functions end before a jump does. Written out, so that no compiler makes something else of them. */
#include "../../support/programs/libc.h"

void *short_malloc(size_t size);
void short_free(void *block);

#define FUNCTION(name, body)                                                                                    \
	__asm__(".text\n.globl " #name "\n.type " #name ", @function\n.p2align 4\n" #name ":\n" body "\n.size " #name \
		", . - " #name "\n")

FUNCTION(short_malloc, "push %rdi\n\tpop %rax\n\tret");
FUNCTION(short_free, "ret");

int main(void)
{
	size_t right = 0;
	char byte;

	puts("ready");
	fflush(stdout);
	while (read(0, &byte, 1) == 1 && byte != 'x')
		right += (size_t)short_malloc(16) == 16;
	short_free(NULL);
	printf("unharmed, %zu\n", right);
	return 0;
}

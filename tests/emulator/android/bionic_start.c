// SPDX-License-Identifier: Apache-2.0
// Entry into bionic's libc, as in the NDK's crtbegin_dynamic.o (bionic/libc/arch-common/bionic/crtbegin.c).
struct initializers {
	void (**before)(void);
	void (**at_start)(void);
	void (**at_end)(void);
};

int main(int argc, char **argv, char **environment);
_Noreturn void __libc_init(void *stack, void (*at_exit)(void), int (*program)(int, char **, char **),
			   const struct initializers *initializers);
void enter(void *stack);

void enter(void *stack)
{
	static void (*none[])(void) = {(void (*)(void))-1, 0}; // each list begins with -1 and ends with 0
	const struct initializers initializers = {none, none, none};
	__libc_init(stack, 0, main, &initializers);
}

__asm__(".text\n.globl _start\n.type _start,%function\n_start:\n\tbti j\n\tmov x29, #0\n\tmov x30, #0\n\tmov x0, sp\n\tb enter\n");

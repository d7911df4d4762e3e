// SPDX-License-Identifier: Apache-2.0
/* What the NDK's crtbegin does before main(), to be included behind it: the tests link without an NDK. */
#ifdef BIONIC
/* Hands the raw stack to libc, which finds argc, the environment and the auxiliary vector there. */
typedef void (*function)(void);
struct structors {
	function *preinit, *init, *fini;
};
void __libc_init(void *raw, function exit, int (*main)(), const struct structors *structors);

__attribute__((used)) static void begin(void *raw)
{
	static function none[] = { (function)-1, 0 };
	static const struct structors structors = { none, none, none };

	__libc_init(raw, 0, main, &structors);
}

#if defined(__aarch64__)
__asm__(".text\n.globl _start\n.type _start, %function\n_start:\n.cfi_startproc\n.cfi_undefined x30\n"
	"mov x29, #0\nmov x30, #0\nmov x0, sp\nbl begin\nbrk #1\n.cfi_endproc\n.size _start, .-_start\n");
#else
__asm__(".text\n.arm\n.globl _start\n.type _start, %function\n_start:\n.fnstart\n.cantunwind\n"
	"mov r11, #0\nmov lr, #0\nmov r0, sp\nbl begin\nudf #0\n.fnend\n.size _start, .-_start\n");
#endif
#endif

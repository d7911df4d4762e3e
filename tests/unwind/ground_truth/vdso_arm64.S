/* What a handler returns to, as the kernel's vdso has it (arch/arm64/kernel/vdso/sigreturn.S): the nop before it is what
 * a look-up of "return address - 1" finds. */
	.text
	nop
	.globl	sigreturn
sigreturn:
	mov	x8, #139
	svc	#0

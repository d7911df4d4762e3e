/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leak(word): allocates BYTES, in a frame of FRAME bytes, with the word at WORD_AT. Instructions are as long whatever
 * these are, so that calls return to the same address in two such libraries.
 */
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

__asm__(".text\n"
	".globl leak\n"
	".type leak, @function\n"
	"leak:\n"
	".cfi_startproc\n"
	"sub $" TEXT(FRAME) ", %rsp\n"
	".cfi_def_cfa_offset 8 + " TEXT(FRAME) "\n"
	"mov %rdi, " TEXT(WORD_AT) "(%rsp)\n"
	"mov $" TEXT(BYTES) ", %edi\n"
	"call malloc@PLT\n"
	"add $" TEXT(FRAME) ", %rsp\n"
	".cfi_def_cfa_offset 8\n"
	"ret\n"
	".cfi_endproc\n"
	".size leak, . - leak\n"
	".section .note.GNU-stack,\"\",@progbits\n");

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens argv[1], calls its leak() argv[3] times, closes it, and the same with argv[2]. Both lie at the same address, or it
 * fails. With argv[4] it writes "ready" and begins at the end of its input. The second one's stack holds at each place that leads through the first one's stack the same word: read
 * by the first one's frames, it is the first one's stack.
 */
#include "../../support/programs/libc.h"

typedef void leak_function(void *word);
typedef void caller_function(leak_function *leak, void *word);

caller_function first_caller, second_caller;
extern char first_return[];

#define CALLER(name, frame)                                                                                            \
	__asm__(".text\n" #name ":\n.cfi_startproc\nsub $" #frame ", %rsp\n.cfi_def_cfa_offset 8 + " #frame          \
		"\nmov %rdi, %rax\nmov %rsi, %rdi\ncall *%rax\n" #name "_return:\nadd $" #frame                        \
		", %rsp\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size " #name ", . - " #name "\n.type " #name       \
		", @function\n")

/* These frames differ by the same 96 bytes as those of leak(), in the other direction. */
CALLER(first_caller, 104);
CALLER(second_caller, 8);
__asm__(".set first_return, first_caller_return\n");

int main(int argc, char **argv)
{
	caller_function *callers[] = { first_caller, second_caller };
	leak_function *leaks[2];

	if (argc == 5 && puts("ready") > 0 && !fflush(stdout))
		getchar();
	for (int i = 0; argc >= 4 && i < 2; i++) {
		void *library = dlopen(argv[1 + i], RTLD_NOW);

		leaks[i] = library ? (leak_function *)dlsym(library, "leak") : NULL;
		if (!leaks[i])
			return 3;
		for (int n = atoi(argv[3]); n; n--) {
			callers[i](leaks[i], first_return);
			if (n % 16 == 0)
				usleep(1000); /* so that the agent learns these frames' rules */
		}
		if (dlclose(library))
			return 4;
	}
	return argc < 4 || leaks[0] != leaks[1];
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Leaks 23 blocks of 1009 bytes, called from code that it wrote into memory: argv[1] "memfd" as ART's JIT keeps it, else
 * anonymous. The code keeps a frame pointer. */
#include "libc.h"

void *volatile kept;

__attribute__((noipa)) static void leak(void)
{
	kept = malloc(1009);
}

int main(int argc, char **argv)
{
	/* push rbp; mov rbp, rsp; call rdi; pop rbp; ret */
	static const unsigned char code[] = { 0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3 };
	int is_file = argc > 1 && !strcmp(argv[1], "memfd");
	int file = is_file ? memfd_create("jit-cache", 0) : -1;

	if (is_file && ftruncate(file, 4096))
		return 1;
	char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, is_file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, file, 0);

	if (at == MAP_FAILED)
		return 1;
	unsigned place = (unsigned)((unsigned long)__builtin_frame_address(0) >> 4) % 64 * 16; /* another in each run */

	memcpy(at + place, code, sizeof(code));
	if (mprotect(at, 4096, PROT_READ | PROT_EXEC))
		return 1;
	void (*call)(void (*)(void)) = (void (*)(void (*)(void)))(at + place);

	for (int i = 0; i < 23; i++)
		call(leak);
	return 0;
}

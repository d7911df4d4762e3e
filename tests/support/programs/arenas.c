/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An allocator above mmap(): every 5 ms it maps 64 KiB and writes to it, and maps and unmaps as much, until its input ends. argv[1]:
 * "syscall": without libc's mmap(). Writes a line before it begins.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BYTES 65536

void *volatile kept;

__attribute__((noipa)) static void *new_arena(void)
{
	return memset(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, BYTES);
}

__attribute__((noipa)) static void *arena_of_kernel(void)
{
	long address = syscall(SYS_mmap, NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return memset((void *)address, 1, BYTES);
}

__attribute__((noipa)) static void borrow_arena(void)
{
	munmap(new_arena(), BYTES);
}

int main(int argc, char **argv)
{
	int is_direct = argc > 1 && !strcmp(argv[1], "syscall");
	struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };

	kept = malloc(1009);
	puts("ready");
	fflush(stdout);
	while (!poll(&input, 1, 5)) {
		(is_direct ? arena_of_kernel : new_arena)();
		borrow_arena();
	}
	return 0;
}

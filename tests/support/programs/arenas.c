/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An allocator above mmap(). For each byte that comes through the FIFO argv[2] it maps 64 KiB and writes to it, maps and unmaps as
 * much, and answers by a byte into argv[3]; `q` ends it. argv[1]: "syscall": without libc's mmap().
 */
#define _GNU_SOURCE
#include <fcntl.h>
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
	if (argc != 4)
		return 2;
	int is_direct = !strcmp(argv[1], "syscall"), requests = open(argv[2], O_RDWR), answers = open(argv[3], O_RDWR);
	char request;

	kept = malloc(1009);
	while (read(requests, &request, 1) == 1 && request != 'q') {
		(is_direct ? arena_of_kernel : new_arena)();
		borrow_arena();
		if (write(answers, &request, 1) != 1)
			return 1;
	}
	return 0;
}

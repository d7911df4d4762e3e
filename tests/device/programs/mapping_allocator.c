// SPDX-License-Identifier: Apache-2.0
/* An allocator in a library of its own whose every block is a mapping, made and unmade by the libc's functions. */
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#define HEAD 64

void *malloc(size_t size)
{
	char *region = mmap(NULL, size + HEAD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (region == MAP_FAILED)
		return NULL;
	*(size_t *)region = size + HEAD;
	return region + HEAD;
}

void free(void *pointer)
{
	char *region = (char *)pointer - HEAD;

	if (pointer)
		munmap(region, *(size_t *)region);
}

void *calloc(size_t n, size_t size)
{
	return malloc(n * size);
}

void *realloc(void *old, size_t size)
{
	void *new = malloc(size);
	size_t old_size = old ? *(size_t *)((char *)old - HEAD) - HEAD : 0;

	if (new && old)
		memcpy(new, old, old_size < size ? old_size : size);
	free(old);
	return new;
}

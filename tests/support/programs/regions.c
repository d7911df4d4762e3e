/* SPDX-License-Identifier: Apache-2.0 */
/* mmap: 2 TiB reserved; 16 pages of which 5 in the middle are unmapped; one grown by mremap. */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/mman.h>

__attribute__((noinline)) static void *reserve(void)
{
	return mmap(NULL, 1ull << 41, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

__attribute__((noinline)) static char *sixteen_pages(void)
{
	return mmap(NULL, 16 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

__attribute__((noinline)) static void *grown(void)
{
	void *region = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return mremap(region, 3 * 4096, 7 * 4096, MREMAP_MAYMOVE);
}

int main(void)
{
	char *pages = sixteen_pages();

	return reserve() == MAP_FAILED || munmap(pages + 3 * 4096, 5 * 4096) || grown() == MAP_FAILED;
}

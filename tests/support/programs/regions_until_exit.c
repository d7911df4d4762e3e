/* SPDX-License-Identifier: Apache-2.0 */
/* As an interpreter's heap: two functions take regions by turns, ten a second for four seconds, and all are given back before the exit. */
#include "libc.h"

#define BYTES (256 << 10)
#define REGIONS 40

void *volatile kept;

static void *new_region(void)
{
	return memset(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, BYTES);
}

__attribute__((noipa)) static void *for_strings(void)
{
	return new_region();
}

__attribute__((noipa)) static void *for_arrays(void)
{
	return new_region();
}

int main(void)
{
	void *regions[REGIONS];

	kept = malloc(1009);
	for (int i = 0; i < REGIONS; i++) {
		regions[i] = i % 2 ? for_strings() : for_arrays();
		usleep(100000);
	}
	for (int i = 0; i < REGIONS; i++)
		munmap(regions[i], BYTES);
	return 0;
}

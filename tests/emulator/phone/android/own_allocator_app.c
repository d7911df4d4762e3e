// SPDX-License-Identifier: Apache-2.0
// The library of an app whose allocator is hidden in it (tests/device/programs/own_allocator.c): what it leaks per run of its activity
// stands in tests/emulator/phone/apps.py, OWN_LEAKS.
#include <stddef.h>

void *malloc(size_t size);
void free(void *block);

static void keep(void *block)
{
	__asm__ volatile("" : : "r"(block) : "memory");
}

__attribute__((noinline)) static void leak_pages(void)
{
	for (int i = 0; i < 23; i++) {
		void *scratch = malloc(701);
		keep(malloc(5003));
		free(scratch);
	}
}

__attribute__((noinline)) static void leak_titles(void)
{
	for (int i = 0; i < 1009; i++)
		keep(malloc(31));
}

__attribute__((visibility("default"))) int main(int argc, char **argv)
{
	(void)argc, (void)argv;
	leak_pages();
	leak_titles();
	return 0;
}

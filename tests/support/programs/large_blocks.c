/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks above the mmap threshold: malloc calls mmap inside. Prints each address. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((noipa)) static void leak_large(size_t size)
{
	printf("%p\n", malloc(size));
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	for (int i = 0; i < 5; i++)
		leak_large(200000);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* argv[1] blocks of argv[2] bytes are leaked. */
#include <stdlib.h>

void *volatile kept;

__attribute__((noinline)) static void leak(size_t size)
{
	kept = malloc(size);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 3;
	for (unsigned long i = strtoul(argv[1], NULL, 10); i > 0; i--)
		leak(strtoul(argv[2], NULL, 10));
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a line; leaks 1013 bytes, by three functions, for every byte of its standard input; ends with that. */
#include <stdlib.h>
#include <unistd.h>

void *volatile kept;

__attribute__((noipa)) static int inner(int n)
{
	kept = malloc(1013);
	return kept != NULL && n;
}

__attribute__((noipa)) static int middle(int n)
{
	volatile char local[24] = { (char)n };

	return inner(n + local[0]) + local[0];
}

__attribute__((noipa)) static int outer(int n)
{
	volatile char local[40] = { (char)n };

	return middle(n + local[0]) + local[0];
}

int main(void)
{
	char byte;

	if (write(1, "ready\n", 6) != 6)
		return 1;
	while (read(0, &byte, 1) > 0)
		outer(byte);
	return 0;
}

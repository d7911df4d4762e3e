/* SPDX-License-Identifier: Apache-2.0 */
/* Leaks argv[1] blocks of 1009 bytes, writes a line, and goes on when its standard input ends. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void *volatile kept;

int main(int argc, char **argv)
{
	char byte;

	for (int i = argc > 1 ? atoi(argv[1]) : 0; i > 0; i--)
		kept = malloc(1009);
	if (write(1, "ready\n", 6) != 6)
		return 1;
	while (read(0, &byte, 1) > 0)
		kept = malloc(1013);
	return 0;
}

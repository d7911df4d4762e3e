// SPDX-License-Identifier: Apache-2.0
/* A library whose initialisation loses a block, and keeps one. */
#include <stdlib.h>
#include <string.h>

void *library_table;

__attribute__((noinline)) static void lost_in_initialisation(void)
{
	memset(malloc(6007), 1, 6007);
}

__attribute__((noinline)) static void kept_in_initialisation(void)
{
	library_table = calloc(1, 8009);
}

__attribute__((constructor)) static void initialise(void)
{
	volatile char stack[16384];

	lost_in_initialisation();
	kept_in_initialisation();
	memset((char *)stack, 0, sizeof(stack)); /* what is left of the calls */
}

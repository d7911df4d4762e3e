/* SPDX-License-Identifier: Apache-2.0 */
/* Overwrites the frames of functions that have returned: a pointer left in one would refer to its block still. */
#include <string.h>

__attribute__((noinline)) static void wipe(void)
{
	volatile char stack[16384];

	memset((char *)stack, 0, sizeof(stack));
}

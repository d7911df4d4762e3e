/* SPDX-License-Identifier: Apache-2.0 */
/* A library with one leaking function, LEAK. */
#include <stdlib.h>

void *volatile kept;

__attribute__((noipa)) void LEAK(void)
{
	kept = malloc(LEAK_BYTES);
}

void leak(void)
{
	LEAK();
	kept = NULL;
}

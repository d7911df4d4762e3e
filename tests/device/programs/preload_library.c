// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

void *library_allocate(size_t size)
{
	void *block = malloc(size);

	__asm__ volatile("" ::: "memory"); /* no tail call: this frame is looked for */
	return block;
}

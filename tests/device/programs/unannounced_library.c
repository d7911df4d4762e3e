/* SPDX-License-Identifier: Apache-2.0 */
/* The code that unannounced_code.c maps: it needs nothing of another library. */
#include <stddef.h>

void *take(void *allocate(size_t), size_t bytes)
{
	void *block = allocate(bytes);

	__asm__ volatile("" : : "r"(block) : "memory"); /* a frame of its own, not a jump to malloc */
	return block;
}

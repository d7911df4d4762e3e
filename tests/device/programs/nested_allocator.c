// SPDX-License-Identifier: Apache-2.0
/* An allocator that tells its user of every block before it hands it out, as pools with a hook for statistics do. */
#include <stdlib.h>

void (*volatile nested_hook)(unsigned);

__attribute__((noinline)) void *nested_malloc(size_t bytes)
{
	char *block = malloc(bytes);

	if (block && nested_hook)
		nested_hook((unsigned)bytes);
	return block;
}

void nested_free(void *block)
{
	free(block);
}

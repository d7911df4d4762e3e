/* Takes what it calls itself for, however deep. */
#include <stddef.h>

static char arena[4096];
static size_t used;

__attribute__((noinline)) void *descend(int depth)
{
	void *block = depth ? descend(depth - 1) : arena + (used += 16);

	__asm__ volatile("" : "+r"(block) : : "memory"); /* no loop is made of it */
	return block;
}

__attribute__((noinline)) void leave(void *block)
{
	__asm__ volatile("" : : "r"(block) : "memory");
}

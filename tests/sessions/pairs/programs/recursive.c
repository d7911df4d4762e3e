/* Takes what it calls itself for, however deep. */
#include <stddef.h>

static char arena[4096];
static size_t used;

__attribute__((noinline)) void *descend(int depth)
{
	void *place = depth ? descend(depth - 1) : arena + (used += 16);

	__asm__ volatile("" : "+r"(place) : : "memory"); /* no loop is made of it */
	return place;
}

__attribute__((noinline)) void leave(void *place)
{
	__asm__ volatile("" : : "r"(place) : "memory");
}

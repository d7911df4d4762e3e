/* A function of two versions. The younger one ends the program where it is called in the place of the older. */
#include <stddef.h>
#include <unistd.h>

__asm__(".symver take_old, take@V1");
__asm__(".symver take_new, take@@V2");

#define MARK 77

static char arena[4096];
static size_t used;

void *take_old(size_t size)
{
	return arena + (used += size);
}

void *take_new(size_t size, int mark)
{
	if (mark != MARK)
		_exit(3);
	return arena + (used += size);
}

void give(void *pointer)
{
	__asm__ volatile("" : : "r"(pointer) : "memory");
}

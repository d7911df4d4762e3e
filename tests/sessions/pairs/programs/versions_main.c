/* Keeps five blocks of 100 bytes by the older version and four of 200 by the younger one. */
#include <stddef.h>

__asm__(".symver take_old, take@V1");

void *take_old(size_t size, int no_mark);
void *take(size_t size, int mark);
void give(void *pointer);

int main(void)
{
	for (int i = 0; i < 5; i++)
		take_old(100, 0);
	for (int i = 0; i < 4; i++)
		take(200, 77);
	give(take_old(50, 0));
	give(take(50, 77));
	return 0;
}

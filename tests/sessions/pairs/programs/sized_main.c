/* Prints what it holds at the end, in bytes and blocks, by its own account. */
#include <malloc.h>
#include <stdio.h>

void *keep(int kind);
void give_up(void *pointer);
void *cell(void *old, int kind);
void uncell(void *cell);
size_t cell_size(void *cell, int flags);

int main(void)
{
	size_t kept = 0, cells = 0;
	void *last = NULL;

	for (int i = 0; i < 40; i++) {
		void *block = keep(i), *one = cell(NULL, i);

		if (i % 3 && block)
			kept += malloc_usable_size(block);
		else
			give_up(block);
		if (i % 4)
			cells += cell_size(one, 0);
		else
			uncell(one);
		last = i % 4 ? one : last;
	}
	cell(last, 101); /* fails, and leaves the old one */
	printf("own %zu 26 %zu 30\n", kept, cells);
	return 0;
}

/* Calls called() for each byte that it is given, and ends with them. */
#include <stdio.h>

__attribute__((noinline, noipa)) int called(const char *text, int i)
{
	__asm__ volatile("");
	return text[0] == 't' ? 3 * i : -1;
}

int main(void)
{
	int i = 0;

	while (getchar() != EOF)
		called("text", i++);
	return 0;
}

/* 64 functions, each of which leaks one block by another size; then a line, and waits for the end of its input. */
#include <stdlib.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noipa))

static void *volatile kept;

#define CALLER(n) \
	KEEP void caller##n(int more) \
	{ \
		volatile char local[16 + n] = { (char)more }; \
		kept = malloc(1000 + n + local[1]); \
	}
#define FOUR(x) CALLER(x##0) CALLER(x##1) CALLER(x##2) CALLER(x##3)
#define CALL(n) caller##n(1);
#define CALL_FOUR(x) CALL(x##0) CALL(x##1) CALL(x##2) CALL(x##3)
#define SIXTEEN(F) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(10) F(11) F(12) F(13) F(14) F(15) F(16) F(17)

SIXTEEN(FOUR)

int main(void)
{
	char byte;

	SIXTEEN(CALL_FOUR)
	if (write(1, "ready\n", 6) != 6)
		return 1;
	return (int)read(0, &byte, 1);
}

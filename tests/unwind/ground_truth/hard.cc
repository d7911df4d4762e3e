/* What is hard to unwind, in one program: exceptions, recursion, tail calls, alloca, variable-length arrays, handlers on
 * two stacks, longjmp out of depth and out of a handler, switches, large frames, callbacks through the C library. */
#include <alloca.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline))

static unsigned seed = 1;
static volatile unsigned sink;
static volatile unsigned handled;

NOINLINE static unsigned next_number(void)
{
	return seed = seed * 1103515245 + 12345, seed >> 8;
}

NOINLINE static unsigned leaf(unsigned a, unsigned b)
{
	return (a << 3) ^ (b * 7);
}

NOINLINE static unsigned early_return(unsigned a, const char *text)
{
	if (a < 8)
		return a;
	sink += strlen(text);
	return leaf(a, sink) + next_number() % 3;
}

NOINLINE static unsigned many(unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned g, unsigned h,
			      unsigned i, unsigned j)
{
	unsigned x = leaf(a, b) + leaf(c, d), y = leaf(e, f) + leaf(g, h);
	return leaf(x, y) + leaf(i, j) + a * b * c * d + e * f * g * h + i * j;
}

NOINLINE static double floats(double a, double b, unsigned n)
{
	double sum = 0, other = a * b;
	for (unsigned i = 0; i < n; i++)
		sum += a * leaf(i, n) + b * other;
	return sum + other;
}

NOINLINE static unsigned dynamic(unsigned n)
{
	char *block = (char *)alloca(n % 500 + 16);
	int array[n % 64 + 4];
	memset(block, (int)n, n % 500 + 16);
	for (unsigned i = 0; i < n % 64 + 4; i++)
		array[i] = (int)leaf(i, n);
	if (n > 100)
		return dynamic(n / 3) + (unsigned)array[n % 4] + (unsigned char)block[n % 16];
	return (unsigned)(unsigned char)block[n % 16] + leaf(n, (unsigned)array[0]);
}

NOINLINE static unsigned large_frame(unsigned n)
{
	char buffer[9000];
	memset(buffer, (int)n, sizeof buffer);
	return (unsigned char)buffer[n % 9000] + leaf(n, 2);
}

NOINLINE static unsigned tail_end(unsigned n);
NOINLINE static unsigned tail(unsigned n)
{
	if (n % 3 == 0)
		next_number();
	return tail_end(n - 1);
}
NOINLINE static unsigned tail_end(unsigned n)
{
	return n < 4 ? leaf(n, n) : tail(n / 2);
}

NOINLINE static unsigned chosen(unsigned kind, unsigned n)
{
	switch (kind % 8) {
	case 0: return leaf(n, 1);
	case 1: return early_return(n, "one") + 1;
	case 2: return many(n, 1, 2, 3, 4, 5, 6, 7, 8, 9);
	case 3: return dynamic(n % 1000);
	case 4: return (unsigned)floats(n, 2, n % 5);
	case 5: return tail(n % 100 + 4);
	case 6: return large_frame(n);
	default: return n;
	}
}

NOINLINE static unsigned recursion(unsigned depth)
{
	return depth ? recursion(depth - 1) + chosen(depth, next_number()) : leaf(1, 2);
}

static int ascending(const void *a, const void *b)
{
	unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
	return x < y ? -1 : x > y;
}

NOINLINE static unsigned sorting(unsigned n)
{
	unsigned numbers[200];
	for (unsigned i = 0; i < 200; i++)
		numbers[i] = next_number();
	qsort(numbers, 200, sizeof *numbers, ascending);
	return numbers[n % 200];
}

NOINLINE static unsigned printing(unsigned n)
{
	char text[100];
	snprintf(text, sizeof text, "%u %x %s %.3f", n, n * 7, "text", n / 3.0);
	return (unsigned)strlen(text);
}

static jmp_buf jump_buffer;
NOINLINE static void jump_from(unsigned depth)
{
	if (!depth)
		longjmp(jump_buffer, 7);
	jump_from(depth - 1);
	sink++;
}
NOINLINE static unsigned jumping(unsigned n)
{
	if (setjmp(jump_buffer))
		return leaf(n, 3) + early_return(n, "jumped");
	jump_from(n % 9);
	return 0;
}

#ifdef EXCEPTIONS
struct Guard {
	unsigned value;
	NOINLINE ~Guard() { sink += leaf(value, 5); }
};
NOINLINE static void throw_from(unsigned depth)
{
	Guard guard = {depth};
	if (!depth)
		throw 42;
	throw_from(depth - 1);
	sink += guard.value;
}
NOINLINE static unsigned throwing(unsigned n)
{
	try {
		throw_from(n % 6);
	} catch (int thrown) {
		return leaf((unsigned)thrown, n);
	}
	return 0;
}
#endif

static void on_signal(int number)
{
	handled = handled + 1;
	sink += chosen((unsigned)number + handled, handled);
}

static sigjmp_buf safe;
static volatile int may_jump;
static void on_jumping_signal(int)
{
	handled = handled + 1;
	if (may_jump) {
		may_jump = 0;
		siglongjmp(safe, 1);
	}
}

NOINLINE static unsigned interrupted_by_jump(unsigned n)
{
	unsigned sum = 0;
	if (sigsetjmp(safe, 1))
		return leaf(n, 11);
	may_jump = 1;
	for (unsigned i = 0; i < 300; i++)
		sum += recursion(1);
	may_jump = 0;
	return sum;
}

static void install(int number, void (*handler)(int), int flags)
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = handler;
	action.sa_flags = flags;
	sigaction(number, &action, NULL);
}

int main(int argc, char **argv)
{
	unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 10, sum = 0;

	if (argc > 2) { /* with signals */
		stack_t stack;
		memset(&stack, 0, sizeof stack);
		stack.ss_size = 65536;
		stack.ss_sp = malloc(stack.ss_size);
		sigaltstack(&stack, NULL);
		install(SIGUSR1, on_signal, 0);
		install(SIGUSR2, on_signal, SA_ONSTACK);
		install(SIGALRM, on_jumping_signal, 0);
	}
	for (unsigned i = 0; i < rounds; i++) {
		sum += recursion(i % 20) + sorting(i) + printing(i) + jumping(i);
		sum += dynamic(next_number() % 2000) + interrupted_by_jump(i);
#ifdef EXCEPTIONS
		if (i == 5) /* a throw takes some 40,000 instructions */
			sum += throwing(i);
#endif
	}
	printf("%u\n", argc > 2 ? handled > 0 : sum);
	return 0;
}

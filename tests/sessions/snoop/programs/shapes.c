/* Every shape of call that is hard to pair, a known number of times. Prints what its own clock says of stay(). */
#include "../../../support/programs/libc.h"
#include <setjmp.h>

#define KEEP __attribute__((noinline, noipa, noclone))

int some_data = 7;
static jmp_buf back;

KEEP long recurse(long n)
{
	long below = n ? recurse(n - 1) : 0;

	__asm__ volatile("" : "+r"(below));
	return below + 1;
}

KEEP void jump_out(int n)
{
	if (!n)
		longjmp(back, 1);
	jump_out(n - 1);
	__asm__ volatile("");
}

KEEP int tail_to(int x)
{
	__asm__ volatile("");
	return 2 * x;
}

KEEP __attribute__((optimize("optimize-sibling-calls"))) int tail_from(int x)
{
	__asm__ volatile("");
	return tail_to(x + 1);
}

KEEP long show(const char *text, const void *bytes, int fd, int negative)
{
	__asm__ volatile("");
	return negative + (text && bytes ? fd : 0);
}

KEEP const char *name_of(int i)
{
	__asm__ volatile("");
	return i ? "one" : "none";
}

static KEEP int only_here(int i)
{
	__asm__ volatile("");
	return i + 1;
}

static inline __attribute__((always_inline)) int never_called(int i)
{
	return i * 3;
}

static long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000 + now.tv_nsec;
}

KEEP long stay(long ns)
{
	long begin = now_ns(), end;

	do
		end = now_ns();
	while (end - begin < ns);
	return end - begin;
}

static void *in_thread(void *unused)
{
	(void)unused;
	for (int i = 0; i < 1000; i++)
		tail_to(i);
	pthread_exit(NULL);
}

static void *ends_inside(void *unused)
{
	recurse(2);
	if (!setjmp(back))
		jump_out(0);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t threads[4];
	int fd = open("/dev/null", O_RDONLY);

	for (int i = 0; i < 7; i++)
		recurse(59);
	for (int i = 0; i < 50; i++)
		if (!setjmp(back))
			jump_out(3);
	for (int i = 0; i < 11; i++)
		tail_from(i);
	show("a \"quoted\" text", "\x01\x02\x03\x04", fd, -5);
	show((const char *)8, NULL, 12345, 1);
	name_of(0);
	only_here(never_called(some_data));
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, i < 3 ? in_thread : ends_inside, NULL);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 9; i++)
		printf("%ld\n", stay(200000));
	recurse(argc > 1 ? atoi(argv[1]) : 0);
	return 0;
}

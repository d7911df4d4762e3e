/* An app in several versions, each with what it leaks: -DVERSION=1..3; 3 leaks in new places, 2 leaks more in an old one. */
#include <stdlib.h>
#include <string.h>

#define KEEP __attribute__((noinline, noipa))

static void *volatile kept;

KEEP void take(size_t bytes, int times)
{
	for (int i = 0; i < times; i++) {
		kept = malloc(bytes);
		memset(kept, 1, bytes);
	}
}

KEEP void fill_cache(int n)
{
	take(100, n);
	__asm__ volatile("");
}

KEEP void open_session(int n)
{
	take(64, n);
	__asm__ volatile("");
}

KEEP void show_banner(int n)
{
	take(256, n);
	__asm__ volatile("");
}

KEEP void parse_coupon(int n)
{
	take(33, n);
	__asm__ volatile("");
}

KEEP void align_for_arm(int n)
{
	take(48, n);
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	srand((unsigned)atoi(argv[1]));
	fill_cache(200 + rand() % 20);
	open_session(VERSION >= 2 ? 90 + rand() % 10 : 20 + rand() % 10);
	if (VERSION >= 3)
		show_banner(20 + rand() % 5);
	if (VERSION < 2)
		parse_coupon(30);
	if (argc > 2)
		align_for_arm(20);
	return 0;
}

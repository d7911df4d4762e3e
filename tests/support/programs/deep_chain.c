/* SPDX-License-Identifier: Apache-2.0 */
/* Seven functions deep, no frame pointers, no tail calls. */
#include <stdlib.h>

void *volatile kept;

#define LINK(name, next)                                                                                       \
	__attribute__((noinline)) static int name(int n)                                                       \
	{                                                                                                      \
		volatile char local[24] = { (char)n };                                                         \
		return next(n + local[0]) + local[0];                                                          \
	}

__attribute__((noinline)) static int link7(int n)
{
	kept = malloc(4007);
	return kept != NULL && n;
}
LINK(link6, link7)
LINK(link5, link6)
LINK(link4, link5)
LINK(link3, link4)
LINK(link2, link3)
LINK(link1, link2)

int main(int argc, char **argv)
{
	(void)argv;
	return link1(argc) == 1000;
}

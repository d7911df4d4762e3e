// SPDX-License-Identifier: Apache-2.0
// Leaks 1009 bytes and renews one of 64 blocks of 4099 bytes a hundred times a second; prints its counts so far, with an
// escape sequence that no terminal should see. Ends by itself after two minutes, or after the given rounds.
#include "libc.h"

void *kept[12000];
static void *cache[64];

__attribute__((noinline)) static void leak_one(int round)
{
	kept[round] = malloc(1009);
}

__attribute__((noinline)) static void renew_one(int round)
{
	free(cache[round % 64]);
	cache[round % 64] = malloc(4099);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 12000;

	setvbuf(stdout, NULL, _IONBF, 0);
	for (int round = 0; round < rounds; round++) {
		leak_one(round);
		renew_one(round);
		if (round % 100 == 0)
			printf("\x1b]0;owned\x07round %d\n", round);
		usleep(10000);
	}
	return 0;
}

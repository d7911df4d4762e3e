/* A heap all of which is written: one word in five, without a pattern, refers to a block; the others are small numbers.
 *
 *   pointers MB     then "ready" on standard output, and it sleeps until standard input ends
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define BLOCK_BYTES 1008u /* 1 KiB with the allocator's own header */

static uint64_t state = 88172645463325252u;

/* xorshift64: Marsaglia, "Xorshift RNGs", Journal of Statistical Software 8 (2003) */
static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

int main(int argc, char **argv)
{
	size_t n = argc == 2 ? strtoul(argv[1], NULL, 10) * 1024 : 0;
	uint64_t **blocks = calloc(n, sizeof(*blocks));

	if (!n || !blocks)
		return 2;
	for (size_t i = 0; i < n; i++)
		if (!(blocks[i] = malloc(BLOCK_BYTES)))
			return 1;
	for (size_t i = 0; i < n; i++)
		for (size_t word = 0; word < BLOCK_BYTES / 8; word++) {
			uint64_t chance = next();

			blocks[i][word] = chance % 5 ? chance >> 32 : (uint64_t)(uintptr_t)blocks[(chance >> 8) % n];
		}
	free(blocks);
	puts("ready");
	fflush(stdout);
	getchar();
	return 0;
}

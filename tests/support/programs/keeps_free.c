/* Two arenas and a large block of which half is given back, and what mallinfo2() says of them; then nothing happens. */
#include "libc.h"

enum { BLOCKS = 20000, BYTES = 1009, LARGE = 3000017 };

static void *volatile kept[2][BLOCKS];
static void *volatile large;

static void *half(void *number)
{
	long own = (long)number;

	for (int i = 0; i < BLOCKS; i++)
		kept[own][i] = memset(malloc(BYTES), 1, BYTES);
	for (int i = 0; i < BLOCKS; i += 2)
		free(kept[own][i]);
	return NULL;
}

int main(int argc, char **argv)
{
	struct mallinfo2 info;
	pthread_t thread;

	pthread_create(&thread, NULL, half, (void *)1);
	pthread_join(thread, NULL);
	half(NULL);
	large = memset(malloc(LARGE), 1, LARGE);
	info = mallinfo2();
	printf("%zu %zu %zu\n", info.arena + info.hblkhd, info.fordblks, info.uordblks + info.hblkhd);
	fflush(stdout);
	sleep(argc > 1 ? (unsigned)atoi(argv[1]) : 3);
	return 0;
}

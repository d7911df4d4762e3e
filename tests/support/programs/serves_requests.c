/* Serves a request for each byte that comes through the FIFO argv[1], and answers by a byte into argv[2]; `q` ends it. */
#include "libc.h"

enum { CACHE = 3 };

void *volatile kept; /* seen from outside: what is only written would be left out */
void *volatile cache[CACHE];

__attribute__((noinline)) static void leak_per_request(void)
{
	kept = malloc(1009);
}

__attribute__((noinline)) static void cache_with_bound(unsigned request)
{
	free(cache[request % CACHE]);
	cache[request % CACHE] = malloc(40009);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	int requests = open(argv[1], O_RDWR), answers = open(argv[2], O_RDWR);
	char request;
	close(1); /* it outlives the measurement: readers of these need not wait */
	close(2);
	for (unsigned i = 0; read(requests, &request, 1) == 1 && request != 'q'; i++) {
		leak_per_request();
		cache_with_bound(i);
		if (write(answers, &request, 1) != 1)
			return 1;
	}
	return 0;
}

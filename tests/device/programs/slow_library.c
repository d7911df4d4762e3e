/* Half loaded for so long: its constructor makes the file named in HALF_LOADED, and goes on when it is gone. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void wait(void)
{
	const char *name = getenv("HALF_LOADED");

	close(open(name, O_CREAT | O_WRONLY, 0600));
	while (!access(name, F_OK))
		usleep(1000);
}

void *leak_here(size_t bytes)
{
	return malloc(bytes);
}

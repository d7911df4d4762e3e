/* Library that tests inject into a process: it records the name under which it was called. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char last[64];

/* Half loaded for so long: makes the file named in HALF_LOADED, and goes on when it is gone. */
__attribute__((constructor)) static void wait(void)
{
	const char *name = getenv("HALF_LOADED");

	if (name)
		close(open(name, O_CREAT | O_WRONLY, 0600));
	while (name && !access(name, F_OK))
		usleep(1000);
}

int length_of(const char *text)
{
	char *copy = strdup(text);

	strncpy(last, copy, sizeof(last) - 1);
	free(copy);
	return (int)strlen(last);
}

int minus_one(const char *text)
{
	(void)text;
	return -1;
}

/* The process ends, or becomes another program, while it is called. */
int leave(const char *text)
{
	(void)text;
	_exit(7);
}

int become(const char *program)
{
	return execl(program, program, "threads", (char *)0);
}

int crash(const char *text)
{
	return *(volatile int *)(size_t)(text ? 16 : 8);
}

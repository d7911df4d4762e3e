/* pool.c as often as standard input says: for each byte once, then a line. */
#include <stdio.h>
#include <unistd.h>

int pool_main(int n_arguments, char **arguments);

int main(int n_arguments, char **arguments)
{
	char order;

	(void)n_arguments;
	puts("ready");
	fflush(stdout);
	while (read(0, &order, 1) == 1) {
		if (pool_main(1, arguments))
			return 1;
		puts("done");
		fflush(stdout);
	}
	return 0;
}

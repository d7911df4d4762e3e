/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends its first thread while another goes on. That one waits until the first is a zombie, then opens the library
 * argv[1] and calls its leak(), or becomes argv[2] … by exec where argv[1] is empty.
 */
#include "libc.h"

static char **words;

static char state_of_first_thread(void)
{
	char path[64], state = '?';
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)getpid());
	file = fopen(path, "r");
	if (!file || fscanf(file, "%*d %*s %c", &state) != 1)
		abort();
	fclose(file);
	return state;
}

static void *go_on(void *unused)
{
	void *library;

	while (state_of_first_thread() != 'Z')
		usleep(1000);
	sleep(1); /* the agent is sure after a quarter of it */
	if (!*words[1])
		execv(words[2], words + 2);
	library = dlopen(words[1], RTLD_NOW);
	if (!library)
		abort();
	((void (*)(void))dlsym(library, "leak"))();
	exit(0);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	words = argv;
	if (argc < 2 || pthread_create(&thread, NULL, go_on, NULL))
		return 1;
	pthread_exit(NULL);
}

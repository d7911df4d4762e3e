/* SPDX-License-Identifier: Apache-2.0 */
/* PLUGIN: functions of a C program that a cancelled thread, and an exception of a plugin that is loaded later, leave. */
#include "../../../support/programs/libc.h"

static volatile int n_cleaned;

static void clean(int *unused)
{
	(void)unused;
	n_cleaned++;
}

__attribute__((noipa)) int waits(void)
{
	pause();
	return n_cleaned;
}

__attribute__((noipa)) void *passes(void *(*call)(void))
{
	return call ? call() : malloc(10); /* two jumps */
}

static void *waiter(void *unused)
{
	__attribute__((cleanup(clean))) int guard = 0;

	(void)unused, (void)guard;
	waits();
	return NULL;
}

int main(int argc, char **argv)
{
	int (*n_caught)(void *(*)(void *(*)(void)));
	pthread_t thread;
	void *plugin;

	if (argc < 2 || pthread_create(&thread, NULL, waiter, NULL))
		return 1;
	pthread_cancel(thread);
	pthread_join(thread, NULL);
	free(passes(NULL));
	plugin = dlopen(argv[1], RTLD_NOW);
	n_caught = plugin ? (int (*)(void *(*)(void *(*)(void))))dlsym(plugin, "n_caught") : NULL;
	return n_caught ? printf("cleaned %d, caught %d\n", n_cleaned, n_caught(passes)) < 0 : 2;
}

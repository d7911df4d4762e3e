/*
 * One thread that obeys orders, a byte each: l leaks, h enters a signal handler and stays in it until o. In there
 * m leaks other blocks, and f frees the last of these.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *volatile kept, *volatile kept_inside;

static void say(const char *line, size_t length)
{
	if (write(1, line, length) != (ssize_t)length)
		_exit(1);
}

static void stay(int signal)
{
	char order = 0;

	(void)signal;
	say("inside\n", 7);
	while (order != 'o') {
		if (read(0, &order, 1) != 1)
			_exit(1);
		if (order == 'm') {
			kept_inside = malloc(4999);
			say("leaked\n", 7);
		} else if (order == 'f') {
			free(kept_inside);
			say("freed\n", 6);
		}
	}
}

static void obey(char order)
{
	if (order == 'h') {
		raise(SIGUSR1);
		say("outside\n", 8);
	} else if (order == 'l') {
		for (int i = 0; i < 23; i++)
			kept = malloc(5003);
		say("leaked\n", 7);
	}
}

int main(void)
{
	char order;

	signal(SIGUSR1, stay);
	say("ready\n", 6);
	while (read(0, &order, 1) == 1)
		obey(order);
	free(kept);
	return 0;
}

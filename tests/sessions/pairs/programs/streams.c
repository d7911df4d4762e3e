/* Streams: two are kept, three are closed, one of them by a freopen() that fails. */
#define _GNU_SOURCE
#include <stdio.h>

int main(void)
{
	static const cookie_io_functions_t none;
	FILE *reopened = fopen("/dev/null", "r");
	FILE *failed = fopen("/dev/null", "r");
	FILE *cookie = fopencookie(NULL, "r", none);

	if (!reopened || !failed || !cookie || fclose(cookie) || !freopen("/dev/zero", "r", reopened) ||
	    freopen("/nowhere/at/all", "r", failed) || !fopencookie(NULL, "r", none))
		return 1;
	return fclose(fopen("/dev/null", "r"));
}

/* 13 requests, each of which forgets a block of 1009 bytes. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

static char *volatile kept;

static void answer(void)
{
	kept = malloc(1009);
}

int main(void)
{
	for (int request = 0; request < 13; request++)
		answer();
	return 0;
}

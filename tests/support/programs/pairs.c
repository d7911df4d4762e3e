/* SPDX-License-Identifier: Apache-2.0 */
/* argv[1] times malloc(argv[2]) and free. */
#include <stdlib.h>

int main(int argc, char **argv)
{
	void *volatile block;

	if (argc != 3)
		return 3;
	for (unsigned long i = strtoul(argv[1], NULL, 10), size = strtoul(argv[2], NULL, 10); i > 0; i--) {
		block = malloc(size);
		free(block);
	}
	return 0;
}

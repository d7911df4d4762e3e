/* SPDX-License-Identifier: Apache-2.0 */
/* argv[1]: realloc = a real leak behind a failed realloc; memalign, calloc = failed calls that leave nothing;
 * zero = realloc to 0 frees. */
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void *volatile kept;
static volatile size_t huge = (size_t)1 << 62;
static volatile size_t odd = 3;

int main(int argc, char **argv)
{
	const char *which = argc > 1 ? argv[1] : "";

	if (!strcmp(which, "realloc")) {
		kept = malloc(1009);
		return realloc(kept, huge) != NULL;
	}
	if (!strcmp(which, "memalign")) {
		void *out = (void *)0x123450;

		return posix_memalign(&out, odd, 4242) == 0;
	}
	if (!strcmp(which, "calloc"))
		return calloc(huge, 8 * odd) != NULL || malloc(SIZE_MAX / odd * 2) != NULL ||
		       reallocarray(NULL, huge, 8) != NULL || aligned_alloc(64, huge * 2 - 64) != NULL;
	if (!strcmp(which, "zero")) {
		kept = malloc(1013);
		return realloc(kept, odd - 3) != NULL;
	}
	return 3;
}

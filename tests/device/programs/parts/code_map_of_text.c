/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim's code map of the mappings on stdin, instead of its own process's. Prints its address bits, and for each
 * address in argv whether it is code: "mask 1 0 …", in hexadecimal.
 */
#include <stdio.h>
#include <stdlib.h>

#include "preload/stacks/maps.c" /* what it reads from, and where to, is its own */

static struct ml_thread thread;
static struct ml_code_map map;

void *ml_ring_reserve_patiently(const struct ml_view *view, struct ml_thread *owner, ml_u32 bytes)
{
	(void)view, (void)owner, (void)bytes;
	return NULL;
}

void ml_ring_commit(const struct ml_view *view, struct ml_thread *owner, ml_u32 kind, ml_u32 bytes)
{
	(void)view, (void)owner, (void)kind, (void)bytes;
}

int main(int argc, char **argv)
{
	struct reader reader = { .thread = &thread, .fd = 0 };

	read_code(&reader, &map, 0);
	printf("%llx", (unsigned long long)~map.signature_mask);
	for (int i = 1; i < argc; i++)
		printf(" %d", ml_code_map_has(&map, strtoull(argv[i], NULL, 16)));
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * argv[2] takes the place of argv[1] at an address while the process's maps are read: just before or just behind each time
 * that the clock is asked. Writes which of them was not there at the time that is given.
 */
#include "../../../support/programs/libc.h"

#include "agent/process/process_maps.h"
#include "agent/protocol/blocks.h"

static char *page;
static int new_file;
static ml_u64 now_ns, change_ns;

static void put(int fd)
{
	if (mmap(page, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0) == MAP_FAILED)
		abort();
}

ml_u64 ml_clock_ns(void)
{
	if (++now_ns == change_ns)
		put(new_file);
	return now_ns;
}

int ml_blocks_writev(enum ml_block_kind kind, const struct iovec *parts, int n_parts)
{
	return (void)kind, (void)parts, n_parts;
}

int main(int argc, char **argv)
{
	int old_file = open(argv[argc - 2], O_RDONLY);

	new_file = open(argv[argc - 1], O_RDONLY);
	page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 10; i++) {
		ml_u64 time_ns;
		size_t bytes;
		char *text;
		int is_new, is_before = i % 2;

		put(old_file);
		now_ns = 0;
		change_ns = 1 + i / 2;
		text = ml_process_maps_now((ml_u32)getpid(), &time_ns, &bytes);
		is_new = time_ns + is_before > change_ns;
		if (!strstr(text, argv[argc - 2 + is_new]) || strstr(text, argv[argc - 1 - is_new]))
			printf("change at %d: %s\n", i, is_new ? "the old file" : "the new file");
		free(text);
	}
	return 0;
}

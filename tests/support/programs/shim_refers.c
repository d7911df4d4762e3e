// SPDX-License-Identifier: Apache-2.0
/*
 * The shim's own memory refers to blocks of the program, as by chance: the name of a map of code is as random as an address, and
 * 32 bits meet often. One lost block is referred to there by its start, one by its inside; a third from a variable.
 * Then it sleeps for argv[1] seconds.
 */
#include "libc.h"
#include <link.h>

#include "wipe.h"

enum { UNUSED_BYTES = 65536 };

static void *global;

/* Zeros of .bss that are so many in a row are not in use. */
static uintptr_t *unused_words(const ElfW(Phdr) * segment, uintptr_t bias)
{
	uintptr_t low = bias + segment->p_vaddr + segment->p_filesz, at = bias + segment->p_vaddr + segment->p_memsz;
	size_t n = 0;

	for (at &= ~(sizeof(at) - 1); at > low && n < UNUSED_BYTES; at -= sizeof(at))
		n = *(uintptr_t *)(at - sizeof(at)) ? 0 : n + sizeof(at);
	return n < UNUSED_BYTES ? NULL : (uintptr_t *)(at + UNUSED_BYTES / 2);
}

static int visit(struct dl_phdr_info *object, size_t bytes, void *found)
{
	(void)bytes;
	if (!strstr(object->dlpi_name, "libmemleak.so"))
		return 0;
	for (int i = 0; i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_LOAD && object->dlpi_phdr[i].p_memsz > UNUSED_BYTES)
			*(uintptr_t **)found = unused_words(&object->dlpi_phdr[i], object->dlpi_addr);
	return 1;
}

__attribute__((noinline)) static void plant(void)
{
	uintptr_t *words = NULL;

	dl_iterate_phdr(visit, &words);
	if (!words)
		exit(1);
	words[0] = (uintptr_t)calloc(1, 1009);
	words[1] = (uintptr_t)calloc(1, 1013) + 400;
	global = calloc(1, 1019);
}

int main(int argc, char **argv)
{
	plant();
	wipe();
	close(1), close(2);
	sleep(argc > 1 ? (unsigned int)atoi(argv[1]) : 0);
	_exit(global ? 0 : 1);
}

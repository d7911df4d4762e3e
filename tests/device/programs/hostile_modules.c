// SPDX-License-Identifier: Apache-2.0
/*
 * Modules whose dynamic sections and tables lie, read as the PLT hook reads them, for a sanitizer to watch.
 *   hostile_modules FILE ROUNDS     FILE: a shared object. Exit code 0: it was read right as it is, and to an end otherwise.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "preload/freestanding/bytes.h"
#include "preload/hooks/elf.h"
#include "preload/hooks/relocations.h"

#define PAGE 4096ul
#define DIRTY_MAX 64

static unsigned char *image;
static size_t image_bytes;
static unsigned long dynamic;
static unsigned long n_slots, n_malloc;
static const struct ml_elf *reading;

/* The segments where the loader would put them, all writable, with nothing readable around. */
static void load(const char *path)
{
	int fd = open(path, O_RDONLY);
	struct stat status;
	const unsigned char *file;
	const ElfW(Ehdr) *header;
	const ElfW(Phdr) *segments;

	fstat(fd, &status);
	file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	header = (const void *)file;
	segments = (const void *)(file + header->e_phoff);
	for (int i = 0; i < header->e_phnum; i++)
		if (segments[i].p_type == PT_LOAD)
			image_bytes = (segments[i].p_vaddr + segments[i].p_memsz + PAGE - 1) & ~(PAGE - 1);
	image = mmap(NULL, image_bytes + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	image += PAGE;
	mprotect(image, image_bytes, PROT_READ | PROT_WRITE);
	for (int i = 0; i < header->e_phnum; i++) {
		if (segments[i].p_type == PT_LOAD)
			memcpy(image + segments[i].p_vaddr, file + segments[i].p_offset, segments[i].p_filesz);
		if (segments[i].p_type == PT_DYNAMIC)
			dynamic = (unsigned long)image + segments[i].p_vaddr;
	}
	munmap((void *)file, (size_t)status.st_size);
	close(fd);
}

static void count(void *context, const struct ml_relocation *relocation)
{
	const char *name = ml_elf_symbol_name(reading, relocation->symbol);

	(void)context;
	n_slots++;
	n_malloc += name && ml_is_same_text(name, "malloc");
}

static int read_it(const struct ml_hook_maps *maps)
{
	static const char *const names[] = { "malloc", "leak_here", "" };
	struct ml_elf elf;

	n_slots = n_malloc = 0;
	if (ml_elf_open(&elf, maps, (unsigned long)image, dynamic))
		return -1;
	reading = &elf;
	for (int i = 0; i < 3; i++)
		ml_elf_find(&elf, names[i]);
	return ml_relocations_each(&elf, count, NULL);
}

/* The dynamic section half of the time: what it says decides where the rest is read. */
static size_t random_offset(unsigned *seed)
{
	size_t offset = (size_t)rand_r(seed) % image_bytes;

	if (rand_r(seed) % 2)
		offset = dynamic - (unsigned long)image + (size_t)rand_r(seed) % 512;
	return offset < image_bytes - 8 ? offset : 0;
}

static void disturb(unsigned *seed, unsigned char *original)
{
	static const uint64_t extremes[] = { 0, 1, ~0ull, 1ull << 63, 0xffffffff, 7, 0x1000, ~0ull - 4095 };
	int n = 1 + rand_r(seed) % DIRTY_MAX;

	memcpy(image, original, image_bytes);
	for (int i = 0; i < n; i++) {
		size_t at = random_offset(seed);

		if (rand_r(seed) % 2)
			memcpy(image + at, &extremes[rand_r(seed) % 8], 8);
		else
			image[at] ^= (unsigned char)rand_r(seed);
	}
}

/* The sanitizer's own memory can be read, but not by what it watches. */
static void keep_image(struct ml_hook_maps *maps)
{
	size_t kept = 0;

	for (size_t i = 0; i < maps->n; i++)
		if (maps->ranges[i].low >= (unsigned long)image && maps->ranges[i].high <= (unsigned long)image + image_bytes)
			maps->ranges[kept++] = maps->ranges[i];
	maps->n = kept;
}

int main(int argc, char **argv)
{
	struct ml_hook_maps maps = { NULL, 0 };
	unsigned seed = 1;
	unsigned char *original;
	struct ml_elf elf;

	load(argv[1]);
	if (ml_hook_maps_read(&maps))
		return 1;
	keep_image(&maps);
	if (read_it(&maps) || n_malloc != 1 || n_slots < 1 ||
	    ml_elf_open(&elf, &maps, (unsigned long)image, dynamic) || !ml_elf_find(&elf, "leak_here") ||
	    ml_elf_find(&elf, "malloc"))
		return 1;
	original = malloc(image_bytes);
	memcpy(original, image, image_bytes);
	for (int i = atoi(argv[argc - 1]); i; i--) {
		disturb(&seed, original);
		read_it(&maps);
	}
	ml_hook_maps_drop(&maps);
	free(original);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Modules whose dynamic sections and tables lie, read as the PLT hook reads them, for a sanitizer to watch.
 *   hostile_modules FILE ROUNDS     FILE: a shared object. Exit code 0: it was read right as it is, and to an end otherwise.
 */
#include <stdint.h>

#include "elf_image.h"
#include "preload/freestanding/bytes.h"
#include "preload/hooks/elf.h"
#include "preload/hooks/relocations.h"

#define DIRTY_MAX 64

static struct image image;
static unsigned long n_slots, n_malloc;
static const struct ml_elf *reading;

static void count(void *context, const struct ml_relocation *relocation)
{
	const char *name = ml_elf_symbol_name(reading, relocation->symbol);

	(void)context;
	n_slots++;
	n_malloc += name && ml_is_same_text(name, "malloc");
}

static int open_elf(struct ml_elf *elf, const struct ml_mappings *maps)
{
	return ml_elf_open(elf, maps, (unsigned long)image.base, (unsigned long)image.base + image.dynamic);
}

static int read_it(const struct ml_mappings *maps)
{
	static const char *const names[] = { "malloc", "leak_here", "" };
	struct ml_elf elf;

	n_slots = n_malloc = 0;
	if (open_elf(&elf, maps))
		return -1;
	reading = &elf;
	for (int i = 0; i < 3; i++)
		ml_elf_find(&elf, names[i]);
	return ml_relocations_each(&elf, count, NULL);
}

/* The dynamic section half of the time: what it says decides where the rest is read. */
static size_t random_offset(unsigned *seed)
{
	size_t offset = (size_t)rand_r(seed) % image.bytes;

	if (rand_r(seed) % 2)
		offset = image.dynamic + (size_t)rand_r(seed) % 512;
	return offset < image.bytes - 8 ? offset : 0;
}

static void disturb(unsigned *seed, unsigned char *original)
{
	static const uint64_t extremes[] = { 0, 1, ~0ull, 1ull << 63, 0xffffffff, 7, 0x1000, ~0ull - 4095 };
	int n = 1 + rand_r(seed) % DIRTY_MAX;

	memcpy(image.base, original, image.bytes);
	for (int i = 0; i < n; i++) {
		size_t at = random_offset(seed);

		if (rand_r(seed) % 2)
			memcpy(image.base + at, &extremes[rand_r(seed) % 8], 8);
		else
			image.base[at] ^= (unsigned char)rand_r(seed);
	}
}

/* The sanitizer's own memory can be read, but not by what it watches. */
static void keep_image(struct ml_mappings *maps)
{
	unsigned long low = (unsigned long)image.base;
	size_t kept = 0;

	for (size_t i = 0; i < maps->n; i++)
		if (maps->ranges[i].low >= low && maps->ranges[i].high <= low + image.bytes)
			maps->ranges[kept++] = maps->ranges[i];
	maps->n = kept;
}

int main(int argc, char **argv)
{
	struct ml_mappings maps = { NULL, 0 };
	unsigned seed = 1;
	unsigned char *original;
	struct ml_elf elf;

	image = load(argv[1]);
	if (ml_mappings_read(&maps))
		return 1;
	keep_image(&maps);
	if (read_it(&maps) || n_malloc != 1 || n_slots < 1 ||
	    open_elf(&elf, &maps) || !ml_elf_find(&elf, "leak_here") ||
	    ml_elf_find(&elf, "malloc"))
		return 1;
	original = malloc(image.bytes);
	memcpy(original, image.base, image.bytes);
	for (int i = atoi(argv[argc - 1]); i; i--) {
		disturb(&seed, original);
		read_it(&maps);
	}
	ml_mappings_drop(&maps);
	free(original);
	return 0;
}

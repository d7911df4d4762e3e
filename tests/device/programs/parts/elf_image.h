/* SPDX-License-Identifier: Apache-2.0 */
/* A file as a loader maps it, all of it writable, with nothing readable around. */
#include "../../../support/programs/libc.h"
#include <elf.h>

#define PAGE 4096ul

struct image {
	unsigned char *base;
	unsigned long first, bytes; /* vaddr of its first page; of all pages */
	unsigned long dynamic; /* offsets from the base: of the dynamic section */
	unsigned long cfi, cfi_bytes; /* and of .eh_frame_hdr; with what follows it in its segment */
};

static void fail(const char *what)
{
	perror(what);
	exit(2);
}

static struct image load(const char *path)
{
	struct image image = { .first = ~0ul };
	int fd = open(path, O_RDONLY);
	const Elf64_Phdr *segments, *end;
	struct stat status;
	unsigned char *file;

	if (fd < 0 || fstat(fd, &status))
		fail(path);
	file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (file == MAP_FAILED)
		fail(path);
	segments = (const void *)(file + ((const Elf64_Ehdr *)file)->e_phoff);
	end = segments + ((const Elf64_Ehdr *)file)->e_phnum;
	for (const Elf64_Phdr *s = segments; s < end; s++) { /* their addresses ascend */
		if (s->p_type == PT_LOAD && image.first == ~0ul)
			image.first = s->p_vaddr & ~(PAGE - 1);
		if (s->p_type == PT_LOAD)
			image.bytes = (s->p_vaddr + s->p_memsz - image.first + PAGE - 1) & ~(PAGE - 1);
	}
	image.base = mmap(NULL, image.bytes + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	image.base += PAGE;
	if (mprotect(image.base, image.bytes, PROT_READ | PROT_WRITE))
		fail("mprotect");
	for (const Elf64_Phdr *s = segments; s < end; s++) {
		if (s->p_type == PT_LOAD)
			memcpy(image.base + s->p_vaddr - image.first, file + s->p_offset, s->p_filesz);
		if (s->p_type == PT_DYNAMIC)
			image.dynamic = s->p_vaddr - image.first;
		if (s->p_type == PT_GNU_EH_FRAME)
			image.cfi = s->p_vaddr - image.first;
	}
	for (const Elf64_Phdr *s = segments; s < end; s++)
		if (s->p_type == PT_LOAD && image.cfi - (s->p_vaddr - image.first) < s->p_filesz)
			image.cfi_bytes = s->p_vaddr - image.first + s->p_filesz - image.cfi;
	munmap(file, (size_t)status.st_size);
	close(fd);
	return image;
}

// SPDX-License-Identifier: Apache-2.0
/* Sources: System V gABI "ELF Header", "Program Header"; proc(5), /proc/PID/maps and /proc/PID/mem. */
#define _GNU_SOURCE
#define _LARGEFILE64_SOURCE /* pread64(): addresses of 32-bit processes, too, are beyond what a long can say */
#include "agent/process/process_image.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/process/process_maps.h"

#define SEGMENTS_MAX 64
#define IMAGE_BYTES_MAX (256ull << 20)
#define PIECE 4096u

struct mapped_file {
	ml_u64 file_offset, inode;
	unsigned int major, minor;
};

struct segment {
	ml_u64 offset, vaddr, bytes;
};

struct image {
	int memory; /* /proc/PID/mem: reads code that may be executed only, too, as Android 10's libraries on arm64 */
	ml_u64 base; /* address of the ELF header */
	bool is_64_bit;
	struct segment segments[SEGMENTS_MAX];
	int n_segments;
	ml_u64 bytes;
};

static bool read_at(const struct image *image, ml_u64 address, void *into, size_t bytes)
{
	return pread64(image->memory, into, bytes, (off64_t)address) == (ssize_t)bytes;
}

/* "START-END PERMISSIONS OFFSET DEVICE INODE PATH" */
static bool parse_file(const char *line, struct mapped_file *mapped)
{
	unsigned long long offset, inode;

	if (sscanf(line, "%*x-%*x %*4s %llx %x:%x %llu", &offset, &mapped->major, &mapped->minor, &inode) != 4)
		return false;
	mapped->file_offset = offset;
	mapped->inode = inode;
	return true;
}

static bool is_of(const struct mapped_file *mapped, const struct mapped_file *file)
{
	return mapped->inode == file->inode && mapped->major == file->major && mapped->minor == file->minor;
}

/* The start of the file mapped at `address`: its last mapping up to there that starts with an ELF header. */
static bool find_base(struct image *image, const char *maps, ml_u64 address, ml_u64 inode, ml_u64 *file_offset)
{
	struct mapped_file wanted = { 0 }, mapped;
	char permissions[4], magic[SELFMAG];
	ml_u64 start, end;
	bool is_found = false;

	for (const char *line = maps, *next; (next = ml_process_maps_line(line, &start, &end, permissions)); line = next)
		if (start <= address && address < end)
			is_found = parse_file(line, &wanted) && wanted.inode == inode;
	if (!is_found)
		return false;
	is_found = false;
	for (const char *line = maps, *next; (next = ml_process_maps_line(line, &start, &end, permissions)); line = next) {
		if (start > address || !parse_file(line, &mapped) || !is_of(&mapped, &wanted))
			continue;
		if (!read_at(image, start, magic, SELFMAG) || memcmp(magic, ELFMAG, SELFMAG))
			continue;
		image->base = start;
		*file_offset = mapped.file_offset;
		is_found = true;
	}
	return is_found;
}

static void add_segment(struct image *image, struct segment segment)
{
	if (image->n_segments == SEGMENTS_MAX || segment.offset > IMAGE_BYTES_MAX || segment.bytes > IMAGE_BYTES_MAX)
		return;
	image->segments[image->n_segments++] = segment;
	if (segment.offset + segment.bytes > image->bytes)
		image->bytes = segment.offset + segment.bytes;
}

/* Offsets in the two classes of ELF files, in bytes. */
struct layout {
	ml_u32 word, n_headers, headers; /* Ehdr; and e_phnum, e_phoff */
	ml_u32 header, offset, vaddr, bytes; /* Phdr; and p_offset, p_vaddr, p_filesz */
};

#define LAYOUT(class)                                                                                          \
	{                                                                                                      \
		sizeof(class##_Addr), offsetof(class##_Ehdr, e_phnum), offsetof(class##_Ehdr, e_phoff),        \
			sizeof(class##_Phdr), offsetof(class##_Phdr, p_offset), offsetof(class##_Phdr, p_vaddr), \
			offsetof(class##_Phdr, p_filesz)                                                       \
	}

static const struct layout layout_32 = LAYOUT(Elf32), layout_64 = LAYOUT(Elf64);

/* Little-endian, as all that Android runs on; 0 where it cannot be read. */
static ml_u64 number_at(const struct image *image, ml_u64 address, size_t bytes)
{
	ml_u64 value = 0;

	return read_at(image, address, &value, bytes) ? value : 0;
}

static bool read_segments(struct image *image)
{
	unsigned char ident[EI_NIDENT];
	const struct layout *layout;
	ml_u64 n_headers, headers;

	if (!read_at(image, image->base, ident, sizeof(ident)))
		return false;
	image->is_64_bit = ident[EI_CLASS] == ELFCLASS64;
	layout = image->is_64_bit ? &layout_64 : &layout_32;
	n_headers = number_at(image, image->base + layout->n_headers, sizeof(Elf64_Half));
	headers = image->base + number_at(image, image->base + layout->headers, layout->word);
	for (ml_u64 i = 0; i < n_headers && i < SEGMENTS_MAX; i++) {
		ml_u64 at = headers + i * layout->header;

		if (number_at(image, at, sizeof(Elf64_Word)) == PT_LOAD)
			add_segment(image, (struct segment){ number_at(image, at + layout->offset, layout->word),
							     number_at(image, at + layout->vaddr, layout->word),
							     number_at(image, at + layout->bytes, layout->word) });
	}
	return image->n_segments;
}

/* Pages that cannot be read stay 0: a guard in the middle of a segment, for one. */
static void copy_segment(const struct image *image, const struct segment *segment, char *into)
{
	ml_u64 address = image->base - (image->segments[0].vaddr - image->segments[0].offset) + segment->vaddr;

	for (ml_u64 done = 0; done < segment->bytes;) {
		ml_u64 step = PIECE - (address + done) % PIECE;

		if (step > segment->bytes - done)
			step = segment->bytes - done;
		read_at(image, address + done, into + segment->offset + done, (size_t)step);
		done += step;
	}
}

static void forget_sections(const struct image *image, char *file)
{
	if (image->is_64_bit && image->bytes >= sizeof(Elf64_Ehdr)) {
		Elf64_Ehdr *head = (void *)file;

		head->e_shoff = 0;
		head->e_shnum = head->e_shstrndx = 0;
	} else if (!image->is_64_bit && image->bytes >= sizeof(Elf32_Ehdr)) {
		Elf32_Ehdr *head = (void *)file;

		head->e_shoff = 0;
		head->e_shnum = head->e_shstrndx = 0;
	}
}

static int write_image(const struct image *image)
{
	char *file = mmap(NULL, (size_t)image->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	size_t written;

	if (file == MAP_FAILED)
		return -1;
	for (int i = 0; i < image->n_segments; i++)
		copy_segment(image, &image->segments[i], file);
	forget_sections(image, file);
	written = fwrite(file, 1, (size_t)image->bytes, stdout);
	munmap(file, (size_t)image->bytes);
	return written == image->bytes && !fflush(stdout) ? 0 : -1;
}

static const char *print_image(struct image *image, int pid, ml_u64 address, ml_u64 inode)
{
	ml_u64 file_offset = 0;
	size_t bytes;
	char *maps = ml_process_maps_read((ml_u32)pid, &bytes);
	bool is_found = maps && find_base(image, maps, address, inode, &file_offset);

	free(maps);
	if (!is_found)
		return "the file is no longer mapped there";
	if (file_offset)
		return "it is a part of an archive";
	if (!read_segments(image) || image->bytes > IMAGE_BYTES_MAX)
		return "its headers make no sense";
	return write_image(image) ? "it could not be written" : NULL;
}

int ml_process_image_print(int pid, const char *address, const char *inode)
{
	struct image image = { .n_segments = 0 };
	const char *reason;
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	image.memory = open(path, O_RDONLY | O_CLOEXEC);
	if (image.memory < 0) {
		fprintf(stderr, "the memory of process %d cannot be read: %s\n", pid, strerror(errno));
		return 4;
	}
	reason = print_image(&image, pid, strtoull(address, NULL, 16), strtoull(inode, NULL, 10));
	if (reason)
		fprintf(stderr, "%s\n", reason);
	close(image.memory);
	return reason ? 4 : 0;
}

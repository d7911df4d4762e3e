// SPDX-License-Identifier: Apache-2.0
/* Sources: System V gABI "ELF Header", "Program Header"; proc(5), /proc/PID/maps and /proc/PID/mem. */
#define _LARGEFILE64_SOURCE /* pread64(): addresses of 32-bit processes exceed a long, too */
#include "agent/process/process_image.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/process/proc_file.h"
#include "agent/process/process_maps.h"

#define IMAGE_BYTES_MAX (256ull << 20)
#define PIECE 4096u

struct image {
	int memory; /* /proc/PID/mem: also reads execute-only code, such as Android 10's libraries on arm64 */
	ml_u64 base; /* address of the ELF header */
	struct ml_elf_segments elf;
	ml_u64 bytes;
};

static bool read_at(int file, ml_u64 address, void *into, size_t bytes)
{
	return pread64(file, into, bytes, (off64_t)address) == (ssize_t)bytes;
}

static bool is_of(const struct ml_maps_line *line, const struct ml_maps_line *file)
{
	return line->inode == file->inode && line->major == file->major && line->minor == file->minor;
}

/* The start of the file mapped at `address`: its last mapping up to there that starts with an ELF header. */
static bool find_base(struct image *image, const char *maps, ml_u64 address, ml_u64 inode, ml_u64 *file_offset)
{
	struct ml_maps_line wanted, line;
	bool is_found = false;
	char magic[SELFMAG];

	if (!ml_process_maps_find(maps, address, &wanted) || wanted.inode != inode)
		return false;
	for (const char *at = maps; (at = ml_process_maps_line(at, &line));) {
		if (line.start > address || !is_of(&line, &wanted))
			continue;
		if (!read_at(image->memory, line.start, magic, SELFMAG) || memcmp(magic, ELFMAG, SELFMAG))
			continue;
		image->base = line.start;
		*file_offset = line.offset;
		is_found = true;
	}
	return is_found;
}

/* Offsets in the two classes of ELF files, in bytes. */
struct layout {
	ml_u32 word, n_headers, headers; /* Ehdr; and e_phnum, e_phoff */
	ml_u32 header, offset, vaddr, file_bytes, memory_bytes; /* Phdr; and p_offset, p_vaddr, p_filesz, p_memsz */
};

#define LAYOUT(class)                       \
	{ sizeof(class##_Addr),             \
	  offsetof(class##_Ehdr, e_phnum),  \
	  offsetof(class##_Ehdr, e_phoff),  \
	  sizeof(class##_Phdr),             \
	  offsetof(class##_Phdr, p_offset), \
	  offsetof(class##_Phdr, p_vaddr),  \
	  offsetof(class##_Phdr, p_filesz), \
	  offsetof(class##_Phdr, p_memsz) }

static const struct layout layout_32 = LAYOUT(Elf32), layout_64 = LAYOUT(Elf64);

/* Little-endian, as all machines of Android; 0: unreadable. */
static ml_u64 number_at(int file, ml_u64 at, size_t bytes)
{
	ml_u64 value = 0;

	return read_at(file, at, &value, bytes) ? value : 0;
}

int ml_elf_segments_read(struct ml_elf_segments *elf, int file, ml_u64 base)
{
	unsigned char ident[EI_NIDENT];
	const struct layout *layout;
	ml_u64 n_headers, at;

	*elf = (struct ml_elf_segments){ 0 };
	if (!read_at(file, base, ident, sizeof(ident)) || memcmp(ident, ELFMAG, SELFMAG))
		return -1;
	elf->is_64_bit = ident[EI_CLASS] == ELFCLASS64;
	layout = elf->is_64_bit ? &layout_64 : &layout_32;
	n_headers = number_at(file, base + layout->n_headers, sizeof(Elf64_Half));
	at = base + number_at(file, base + layout->headers, layout->word);
	for (ml_u64 i = 0; i < n_headers && i < ML_ELF_SEGMENTS_MAX; i++, at += layout->header) {
		ml_u32 type = (ml_u32)number_at(file, at, sizeof(Elf64_Word));

		elf->has_interpreter |= type == PT_INTERP;
		if (type == PT_LOAD)
			elf->loaded[elf->n_loaded++] =
				(struct ml_elf_segment){ number_at(file, at + layout->offset, layout->word),
							 number_at(file, at + layout->vaddr, layout->word),
							 number_at(file, at + layout->file_bytes, layout->word),
							 number_at(file, at + layout->memory_bytes, layout->word) };
	}
	return 0;
}

/* Keeps the segments of a sensible size; false: there is none. */
static bool read_segments(struct image *image)
{
	int n = 0;

	if (ml_elf_segments_read(&image->elf, image->memory, image->base))
		return false;
	for (int i = 0; i < image->elf.n_loaded; i++) {
		struct ml_elf_segment segment = image->elf.loaded[i];

		if (segment.offset > IMAGE_BYTES_MAX || segment.file_bytes > IMAGE_BYTES_MAX)
			continue;
		image->elf.loaded[n++] = segment;
		if (segment.offset + segment.file_bytes > image->bytes)
			image->bytes = segment.offset + segment.file_bytes;
	}
	image->elf.n_loaded = n;
	return n;
}

/* Unreadable pages stay 0, such as a guard page in a segment. */
static void copy_segment(const struct image *image, const struct ml_elf_segment *segment, char *into)
{
	ml_u64 address = image->base - (image->elf.loaded[0].vaddr - image->elf.loaded[0].offset) + segment->vaddr;

	for (ml_u64 done = 0; done < segment->file_bytes;) {
		ml_u64 step = PIECE - (address + done) % PIECE;

		if (step > segment->file_bytes - done)
			step = segment->file_bytes - done;
		read_at(image->memory, address + done, into + segment->offset + done, (size_t)step);
		done += step;
	}
}

static void forget_sections(const struct image *image, char *file)
{
	if (image->elf.is_64_bit && image->bytes >= sizeof(Elf64_Ehdr)) {
		Elf64_Ehdr *head = (void *)file;

		head->e_shoff = 0;
		head->e_shnum = head->e_shstrndx = 0;
	} else if (!image->elf.is_64_bit && image->bytes >= sizeof(Elf32_Ehdr)) {
		Elf32_Ehdr *head = (void *)file;

		head->e_shoff = 0;
		head->e_shnum = head->e_shstrndx = 0;
	}
}

static int write_image(const struct image *image)
{
	char *file =
		mmap(NULL, (size_t)image->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	size_t written;

	if (file == MAP_FAILED)
		return -1;
	for (int i = 0; i < image->elf.n_loaded; i++)
		copy_segment(image, &image->elf.loaded[i], file);
	forget_sections(image, file);
	written = fwrite(file, 1, (size_t)image->bytes, stdout);
	munmap(file, (size_t)image->bytes);
	return written == image->bytes && !fflush(stdout) ? 0 : -1;
}

static const char *print_image(struct image *image, int pid, ml_u64 address, ml_u64 inode)
{
	ml_u64 file_offset = 0;
	char *maps = ml_process_maps_read((ml_u32)pid, NULL);
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
	struct image image = { 0 };
	const char *reason;

	image.memory = ml_proc_open(pid, "mem", O_RDONLY);
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

int ml_vdso_print(void)
{
	char *maps = ml_process_maps_read((ml_u32)getpid(), NULL);
	struct ml_maps_line line;

	for (const char *at = maps; (at = ml_process_maps_line(at, &line));)
		if (ml_process_maps_has(&line, "[vdso]"))
			fwrite((const void *)(size_t)line.start, 1, (size_t)(line.end - line.start), stdout);
	free(maps);
	return fflush(stdout) ? 1 : 0;
}

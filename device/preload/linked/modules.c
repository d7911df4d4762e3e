// SPDX-License-Identifier: Apache-2.0
/* MAPS, and MODULES with the build-ids found in memory. */
#include <elf.h>

#include "preload/freestanding/bytes.h"
#include "preload/linked/recording.h"
#include "preload/linked/text.h"
#include "preload/freestanding/syscalls.h"

#define BUILD_ID_MAX 64u
#define PATH_BYTES_MAX 4096
#define HEADERS_MAX 32u
#define NOTES_MAX 1024u
_Static_assert(ML_HOOKED_MAX * sizeof(struct ml_hooked) <= ML_RECORDING_SCRATCH_BYTES, "they fit");

#define TEXT_ROOM (ML_RECORDING_SCRATCH_BYTES / 2) /* the first half is for the maps */

#if defined(__LP64__)
typedef Elf64_Ehdr ehdr;
typedef Elf64_Phdr phdr;
#else
typedef Elf32_Ehdr ehdr;
typedef Elf32_Phdr phdr;
#endif

/* Finds NT_GNU_BUILD_ID among notes (gABI "Note Section"); returns its size. */
static ml_u32 find_in_notes(const unsigned char *notes, ml_u32 bytes, const unsigned char **id)
{
	for (ml_u32 at = 0; bytes - at >= sizeof(Elf32_Nhdr);) {
		Elf32_Nhdr note;
		ml_u32 name_bytes, id_bytes;

		ml_copy(&note, notes + at, sizeof(note));
		at += sizeof(note);
		name_bytes = (note.n_namesz + 3) & ~3u;
		id_bytes = (note.n_descsz + 3) & ~3u;
		if (note.n_namesz > NOTES_MAX || note.n_descsz > NOTES_MAX || name_bytes + id_bytes > bytes - at)
			return 0;
		if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && ml_starts_with((const char *)notes + at, "GNU")) {
			*id = notes + at + name_bytes;
			return note.n_descsz <= BUILD_ID_MAX ? note.n_descsz : 0;
		}
		at += name_bytes + id_bytes;
	}
	return 0;
}

/* An ELF file whose start is mapped. */
struct module {
	ml_u64 bias; /* address - vaddr */
	ml_u64 end;  /* of its last segment */
	ml_u32 id_bytes;
	unsigned char notes[NOTES_MAX];
	const unsigned char *id; /* within the notes */
};

/* 0: no ELF file begins there. */
static int read_module(ml_u64 base, struct module *module)
{
	phdr headers[HEADERS_MAX];
	ehdr file;

	if (ml_read_memory(&file, base, sizeof(file)) != sizeof(file) || !ml_starts_with((const char *)file.e_ident, ELFMAG) ||
	    file.e_phentsize != sizeof(*headers) || file.e_phnum > HEADERS_MAX ||
	    ml_read_memory(headers, base + file.e_phoff, file.e_phnum * sizeof(*headers)) !=
		    (long)(file.e_phnum * sizeof(*headers)))
		return 0;
	module->bias = base;
	module->end = 0;
	module->id_bytes = 0;
	for (ml_u32 i = 0; i < file.e_phnum; i++)
		if (headers[i].p_type == PT_LOAD && !headers[i].p_offset)
			module->bias = base - headers[i].p_vaddr;
	for (ml_u32 i = 0; i < file.e_phnum; i++)
		if (headers[i].p_type == PT_LOAD && module->bias + headers[i].p_vaddr + headers[i].p_memsz > module->end)
			module->end = module->bias + headers[i].p_vaddr + headers[i].p_memsz;
	for (ml_u32 i = 0; i < file.e_phnum && !module->id_bytes; i++) {
		ml_u32 n = headers[i].p_filesz < NOTES_MAX ? (ml_u32)headers[i].p_filesz : NOTES_MAX;

		if (headers[i].p_type == PT_NOTE &&
		    ml_read_memory(module->notes, module->bias + headers[i].p_vaddr, n) == (long)n)
			module->id_bytes = find_in_notes(module->notes, n, &module->id);
	}
	return 1;
}

/*
 * Adds the ELF file that begins at a line of maps (proc(5)): a file or a member of an archive. Skips addresses below
 * *module_end: other segments of a small file may begin in its first page, too.
 */
static void add_module(struct ml_text *text, const char *line, const char *end, ml_u64 *module_end)
{
	const char *path = line, *at = line;
	ml_u64 base = ml_parse_hex(&at, end);
	struct module module;

	while (path < end && *path != '/')
		path++;
	while (at < end && *at != ' ')
		at++;
	if (path == end || end - path > PATH_BYTES_MAX || at[1] != 'r' || base < *module_end || !read_module(base, &module))
		return;
	*module_end = module.end;
	ml_text_add(text, text->fill > 1 ? ",{\"path\":" : "{\"path\":");
	ml_text_add_quoted(text, path, (size_t)(end - path));
	ml_text_add(text, ",\"start\":");
	ml_text_add_number(text, base);
	ml_text_add(text, ",\"bias\":");
	ml_text_add_number(text, module.bias);
	ml_text_add(text, ",\"build_id\":\"");
	for (ml_u32 i = 0; i < module.id_bytes; i++)
		ml_text_add_hex_byte(text, module.id[i]);
	ml_text_add(text, "\"}");
}

/* Whole lines only. */
static ml_u32 read_maps(char *to, ml_u32 room)
{
	long fd = ml_open_maps(), n = 1;
	ml_u32 fill = 0;

	while (fd >= 0 && fill < room && (n = ML_SYSCALL3(read, fd, to + fill, room - fill)) > 0)
		fill += (ml_u32)n;
	if (fd >= 0)
		ML_SYSCALL1(close, fd);
	while (fill && to[fill - 1] != '\n')
		fill--;
	return fill;
}

void ml_recording_hooked(struct ml_recording *recording, const struct ml_view *view)
{
	struct ml_hooked *rows = (struct ml_hooked *)(void *)recording->scratch;
	ml_u32 n = __atomic_load_n(&view->segment->n_hooked, __ATOMIC_ACQUIRE);

	if (n > ML_HOOKED_MAX)
		n = ML_HOOKED_MAX;
	if (!n)
		return;
	ml_copy(rows, view->hooked, n * sizeof(*rows));
	for (ml_u32 i = 0; i < n; i++)
		rows[i].pid = view->segment->pid;
	ml_recording_write(recording, ML_BLOCK_HOOKED, &(struct iovec){ rows, n * sizeof(*rows) }, 1);
}

void ml_recording_modules(struct ml_recording *recording, const struct ml_view *view)
{
	char *maps = (char *)recording->scratch;
	struct ml_text text = { maps + TEXT_ROOM, 0, TEXT_ROOM };
	struct ml_maps head = { view->segment->start_ns, view->segment->pid, read_maps(maps, TEXT_ROOM) };
	struct iovec parts[2] = { { &head, sizeof(head) }, { maps, head.text_bytes } };
	const char *line = maps;
	ml_u64 module_end = 0;

	ml_recording_write(recording, ML_BLOCK_MAPS, parts, 2);
	ml_text_add(&text, "[");
	for (const char *at = maps; at < maps + head.text_bytes; at++) {
		if (*at != '\n')
			continue;
		if (text.room - text.fill > 8 * PATH_BYTES_MAX)
			add_module(&text, line, at, &module_end);
		line = at + 1;
	}
	ml_text_add(&text, "]");
	ml_recording_write(recording, ML_BLOCK_MODULES, &(struct iovec){ text.bytes, text.fill }, 1);
}

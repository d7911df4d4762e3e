// SPDX-License-Identifier: Apache-2.0
/* Sources: <link.h> (r_debug), System V gABI "Dynamic Section" and "Hash Table"; .gnu.hash as binutils writes it. */
#include "agent/process/target_objects.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "agent/process/proc_file.h"
#include "agent/process/process_maps.h"
#include "agent/protocol/extend.h"

#define DYNAMIC_MAX 4096
#define HEADERS_MAX 64
#define SYMBOLS_MAX (1u << 20)
#define STRINGS_MAX (64u << 20)
#define CHAIN_MAX 65536
#define BUDGET_BYTES (256ull << 20) /* of all objects: a second of reading */
#define READ_COST 256 /* of a call, in bytes copied in the same time */

int ml_target_read(ml_u32 pid, ml_u64 address, void *into, size_t bytes)
{
	struct iovec here = { into, bytes }, there = { (void *)(size_t)address, bytes };

	return process_vm_readv((pid_t)pid, &here, 1, &there, 1, 0) == (ssize_t)bytes ? 0 : -1;
}

int ml_target_write(ml_u32 pid, ml_u64 address, const void *from, size_t bytes)
{
	struct iovec here = { (void *)from, bytes }, there = { (void *)(size_t)address, bytes };

	return process_vm_writev((pid_t)pid, &here, 1, &there, 1, 0) == (ssize_t)bytes ? 0 : -1;
}

/* Takes so much reading from the budget. False: there is not so much left, and none after it. */
static bool spend(struct ml_target_objects *objects, ml_u64 bytes)
{
	bool is_within = bytes <= objects->unread;

	objects->unread = is_within ? objects->unread - bytes : 0;
	return is_within;
}

static int read_within(struct ml_target_objects *objects, ml_u64 address, void *into, size_t bytes)
{
	return spend(objects, bytes + READ_COST) ? ml_target_read(objects->pid, address, into, bytes) : -1;
}

/* Reads up to `room` bytes of a text, always terminated. */
static void read_text(struct ml_target_objects *objects, ml_u64 address, char *text, size_t room)
{
	size_t n = 0;

	while (n + 1 < room && address && !read_within(objects, address + n, text + n, 1) && text[n])
		n++;
	text[n] = '\0';
}

/* ---- one object -------------------------------------------------------------------------------------- */

struct tables {
	ml_u64 gnu_hash, hash;
};

/* glibc relocates these entries in memory, bionic and musl do not. */
static ml_u64 relocated(const struct ml_target_object *object, ml_u64 value)
{
	return value < object->bias ? value + object->bias : value;
}

static void read_dynamic(struct ml_target_objects *objects, struct ml_target_object *object, struct tables *tables)
{
	Elf64_Dyn entry;

	for (int i = 0; i < DYNAMIC_MAX; i++) {
		if (read_within(objects, object->dynamic + (ml_u64)i * sizeof(entry), &entry, sizeof(entry)) ||
		    entry.d_tag == DT_NULL)
			return;
		if (entry.d_tag == DT_SYMTAB)
			object->symbols = relocated(object, entry.d_un.d_ptr);
		else if (entry.d_tag == DT_STRTAB)
			object->strings = relocated(object, entry.d_un.d_ptr);
		else if (entry.d_tag == DT_STRSZ)
			object->strings_bytes = entry.d_un.d_val;
		else if (entry.d_tag == DT_GNU_HASH)
			tables->gnu_hash = relocated(object, entry.d_un.d_ptr);
		else if (entry.d_tag == DT_HASH)
			tables->hash = relocated(object, entry.d_un.d_ptr);
	}
}

/* One more than the last symbol that the table's chains lead to. */
static ml_u32 count_gnu(struct ml_target_objects *objects, ml_u64 table)
{
	ml_u32 head[4]; /* buckets, first symbol, words of the Bloom filter, its shift */
	ml_u32 last = 0, entry = 0, *buckets;
	ml_u64 at;

	if (read_within(objects, table, head, sizeof(head)) || !head[0] || head[0] > SYMBOLS_MAX)
		return 0;
	buckets = calloc(head[0], sizeof(*buckets));
	at = table + sizeof(head) + head[2] * 8ull;
	if (buckets && !read_within(objects, at, buckets, head[0] * sizeof(*buckets)))
		for (ml_u32 i = 0; i < head[0]; i++)
			last = buckets[i] > last ? buckets[i] : last;
	free(buckets);
	if (last < head[1] || last > SYMBOLS_MAX)
		return last < head[1] ? 0 : SYMBOLS_MAX;
	at += (head[0] + (ml_u64)(last - head[1])) * 4;
	for (int i = 0; i < CHAIN_MAX && !read_within(objects, at, &entry, 4) && !(entry & 1); i++, at += 4)
		last++;
	return last + 1;
}

static ml_u32 count_symbols(struct ml_target_objects *objects, const struct tables *tables)
{
	ml_u32 words[2] = { 0 }; /* buckets, chains: one for each symbol */

	if (tables->gnu_hash)
		return count_gnu(objects, tables->gnu_hash);
	if (!tables->hash || read_within(objects, tables->hash, words, sizeof(words)))
		return 0;
	return words[1] < SYMBOLS_MAX ? words[1] : SYMBOLS_MAX;
}

/* ---- all of them ------------------------------------------------------------------------------------- */

static int read_auxv(ml_u32 pid, struct ml_target_objects *objects, ml_u64 *headers, ml_u64 *n_headers)
{
	Elf64_auxv_t entry;
	int file = ml_proc_open((pid_t)pid, "auxv", O_RDONLY);

	if (file < 0)
		return -1;
	while (read(file, &entry, sizeof(entry)) == (ssize_t)sizeof(entry) && entry.a_type != AT_NULL) {
		if (entry.a_type == AT_PHDR)
			*headers = entry.a_un.a_val;
		else if (entry.a_type == AT_PHNUM)
			*n_headers = entry.a_un.a_val < HEADERS_MAX ? entry.a_un.a_val : HEADERS_MAX;
		else if (entry.a_type == AT_BASE)
			objects->interpreter = entry.a_un.a_val;
	}
	close(file);
	return 0;
}

/* struct r_debug, which DT_DEBUG of the program points to: its list of objects. 0 = none. */
static ml_u64 find_list(struct ml_target_objects *objects, ml_u64 headers, ml_u64 n_headers)
{
	ml_u64 bias = 0, dynamic = 0, list = 0;
	Elf64_Phdr header;
	Elf64_Dyn entry;

	for (ml_u64 i = 0; i < n_headers && !read_within(objects, headers + i * sizeof(header), &header, sizeof(header)); i++) {
		if (header.p_type == PT_PHDR)
			bias = headers - header.p_vaddr;
		else if (header.p_type == PT_DYNAMIC)
			dynamic = header.p_vaddr;
	}
	for (int i = 0; dynamic && i < DYNAMIC_MAX; i++) {
		if (read_within(objects, bias + dynamic + (ml_u64)i * sizeof(entry), &entry, sizeof(entry)) ||
		    entry.d_tag == DT_NULL)
			break;
		if (entry.d_tag == DT_DEBUG && entry.d_un.d_val)
			return read_within(objects, entry.d_un.d_val + 8, &list, sizeof(list)) ? 0 : list;
	}
	return 0;
}

/* The list of a program that its linker runs (`ld.so PROGRAM`), which the kernel does not know: only programs have DT_DEBUG. */
static ml_u64 find_list_in_maps(struct ml_target_objects *objects, ml_u64 linker_headers)
{
	char *maps = ml_process_maps_read(objects->pid, NULL);
	struct ml_maps_line line;
	Elf64_Ehdr file;
	ml_u64 list = 0;

	for (const char *at = maps; !list && (at = ml_process_maps_line(at, &line));)
		if (line.inode && !line.offset && line.permissions[0] == 'r' && line.permissions[3] == 'p' &&
		    !read_within(objects, line.start, &file, sizeof(file)) && !memcmp(file.e_ident, ELFMAG, SELFMAG))
			list = find_list(objects, line.start + file.e_phoff, file.e_phnum < HEADERS_MAX ? file.e_phnum : 0);
	if (list && ml_process_maps_find(maps, linker_headers, &line))
		objects->interpreter = line.start;
	free(maps);
	return list;
}

static int append(struct ml_target_objects *objects, const ml_u64 map[5])
{
	struct ml_target_object *more;
	struct tables tables = { 0 };

	if (!ML_EXTEND(objects->objects, objects->n, objects->room)) {
		errno = ENOMEM;
		return -1;
	}
	more = &objects->objects[objects->n++];
	*more = (struct ml_target_object){ .bias = map[0], .dynamic = map[2] };
	read_text(objects, map[1], more->path, sizeof(more->path));
	read_dynamic(objects, more, &tables);
	more->n_symbols = more->symbols && more->strings ? count_symbols(objects, &tables) : 0;
	if (!more->n_symbols ||
	    (more->strings_bytes <= STRINGS_MAX && spend(objects, more->n_symbols * sizeof(Elf64_Sym) + more->strings_bytes)))
		return 0;
	errno = E2BIG;
	return -1;
}

int ml_target_objects_read(struct ml_target_objects *objects, ml_u32 pid)
{
	ml_u64 headers = 0, n_headers = 0, at, map[5]; /* struct link_map: l_addr, l_name, l_ld, l_next, l_prev */

	*objects = (struct ml_target_objects){ .pid = pid, .unread = BUDGET_BYTES };
	if (read_auxv(pid, objects, &headers, &n_headers))
		return -1;
	at = find_list(objects, headers, n_headers);
	if (!at && !objects->interpreter)
		at = find_list_in_maps(objects, headers);
	for (int i = 0; i < ML_TARGET_OBJECTS_MAX && at && !read_within(objects, at, map, sizeof(map)); i++, at = map[3])
		if (append(objects, map))
			return -1;
	errno = E2BIG;
	return objects->unread ? 0 : -1;
}

void ml_target_objects_free(struct ml_target_objects *objects)
{
	free(objects->objects);
	*objects = (struct ml_target_objects){ 0 };
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

const struct ml_target_object *ml_target_objects_named(const struct ml_target_objects *objects, const char *path)
{
	for (size_t i = 0; i < objects->n; i++)
		if (!strcmp(base_name(objects->objects[i].path), base_name(path)))
			return &objects->objects[i];
	return NULL;
}

/* ---- symbols ----------------------------------------------------------------------------------------- */

static int compare_starts(const void *left, const void *right)
{
	const struct ml_target_symbol *a = left, *b = right;

	return (a->start > b->start) - (a->start < b->start);
}

static bool is_function(const Elf64_Sym *symbol, ml_u64 strings_bytes)
{
	int type = ELF64_ST_TYPE(symbol->st_info);

	return symbol->st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_GNU_IFUNC) && symbol->st_name < strings_bytes;
}

struct ml_target_symbol *ml_target_functions(ml_u32 pid, const struct ml_target_object *object, size_t *n)
{
	size_t room = object->n_symbols * sizeof(struct ml_target_symbol);
	struct ml_target_symbol *found;
	Elf64_Sym *symbols;
	char *strings;

	*n = 0;
	if (!object->n_symbols || !object->strings_bytes)
		return NULL;
	found = calloc(1, room + object->strings_bytes + 1);
	symbols = calloc(object->n_symbols, sizeof(*symbols));
	strings = (char *)found + room;
	if (!found || !symbols || ml_target_read(pid, object->strings, strings, object->strings_bytes) ||
	    ml_target_read(pid, object->symbols, symbols, object->n_symbols * sizeof(*symbols))) {
		free(found);
		free(symbols);
		return NULL;
	}
	for (ml_u32 i = 0; i < object->n_symbols; i++)
		if (is_function(&symbols[i], object->strings_bytes))
			found[(*n)++] =
				(struct ml_target_symbol){ strings + symbols[i].st_name, object->bias + symbols[i].st_value,
							   object->bias + symbols[i].st_value + symbols[i].st_size };
	free(symbols);
	qsort(found, *n, sizeof(*found), compare_starts);
	return found;
}

const struct ml_target_symbol *ml_target_functions_find(const struct ml_target_symbol *functions, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(functions[i].name, name))
			return &functions[i];
	return NULL;
}

ml_u64 ml_target_function(ml_u32 pid, const struct ml_target_object *object, const char *name)
{
	size_t n;
	struct ml_target_symbol *functions = ml_target_functions(pid, object, &n);
	const struct ml_target_symbol *found = ml_target_functions_find(functions, n, name);
	ml_u64 address = found ? found->start : 0;

	free(functions);
	return address;
}

static void print_object(ml_u32 pid, const struct ml_target_object *object, char *const *names, int n_names)
{
	size_t n = 0;
	struct ml_target_symbol *functions = n_names ? ml_target_functions(pid, object, &n) : NULL;

	printf("%llx", (unsigned long long)object->dynamic);
	for (int i = 0; i < n_names; i++)
		if (ml_target_functions_find(functions, n, names[i]))
			printf(" %s", names[i]);
	printf("\n");
	free(functions);
}

int ml_target_objects_print(int pid, char *const *names, int n_names)
{
	struct ml_target_objects objects;

	if (ml_target_objects_read(&objects, (ml_u32)pid)) {
		fprintf(stderr, "process %d cannot be read: %s\n", pid, strerror(errno));
		return 4;
	}
	for (size_t i = 0; i < objects.n; i++)
		print_object((ml_u32)pid, &objects.objects[i], names, n_names);
	ml_target_objects_free(&objects);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
/* Sources: <link.h> (r_debug), System V gABI "Dynamic Section" and "Hash Table"; .gnu.hash as binutils writes it. */
#define _GNU_SOURCE
#include "agent/process/target_objects.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define DYNAMIC_MAX 4096
#define HEADERS_MAX 64
#define SYMBOLS_MAX (1u << 20)
#define STRINGS_MAX (64u << 20)
#define CHAIN_MAX 65536

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

/* Up to so many bytes of a text, always ended. */
static void read_text(ml_u32 pid, ml_u64 address, char *text, size_t room)
{
	size_t n = 0;

	while (n + 1 < room && address && !ml_target_read(pid, address + n, text + n, 1) && text[n])
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

static void read_dynamic(ml_u32 pid, struct ml_target_object *object, struct tables *tables)
{
	Elf64_Dyn entry;

	for (int i = 0; i < DYNAMIC_MAX; i++) {
		if (ml_target_read(pid, object->dynamic + (ml_u64)i * sizeof(entry), &entry, sizeof(entry)) ||
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
static ml_u32 count_gnu(ml_u32 pid, ml_u64 table)
{
	ml_u32 head[4]; /* buckets, first symbol, words of the Bloom filter, its shift */
	ml_u32 last = 0, entry = 0, *buckets;
	ml_u64 at;

	if (ml_target_read(pid, table, head, sizeof(head)) || !head[0] || head[0] > SYMBOLS_MAX)
		return 0;
	buckets = calloc(head[0], sizeof(*buckets));
	at = table + sizeof(head) + head[2] * 8ull;
	if (buckets && !ml_target_read(pid, at, buckets, head[0] * sizeof(*buckets)))
		for (ml_u32 i = 0; i < head[0]; i++)
			last = buckets[i] > last ? buckets[i] : last;
	free(buckets);
	if (last < head[1] || last > SYMBOLS_MAX)
		return last < head[1] ? 0 : SYMBOLS_MAX;
	at += (head[0] + (ml_u64)(last - head[1])) * 4;
	for (int i = 0; i < CHAIN_MAX && !ml_target_read(pid, at, &entry, 4) && !(entry & 1); i++, at += 4)
		last++;
	return last + 1;
}

static ml_u32 count_symbols(ml_u32 pid, const struct tables *tables)
{
	ml_u32 words[2] = { 0 }; /* buckets, chains: one for each symbol */

	if (tables->gnu_hash)
		return count_gnu(pid, tables->gnu_hash);
	if (!tables->hash || ml_target_read(pid, tables->hash, words, sizeof(words)))
		return 0;
	return words[1] < SYMBOLS_MAX ? words[1] : SYMBOLS_MAX;
}

/* ---- all of them ------------------------------------------------------------------------------------- */

static int read_auxv(ml_u32 pid, struct ml_target_objects *objects, ml_u64 *headers, ml_u64 *n_headers)
{
	Elf64_auxv_t entry;
	char path[32];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%u/auxv", pid);
	file = fopen(path, "re");
	if (!file)
		return -1;
	while (fread(&entry, sizeof(entry), 1, file) == 1 && entry.a_type != AT_NULL) {
		if (entry.a_type == AT_PHDR)
			*headers = entry.a_un.a_val;
		else if (entry.a_type == AT_PHNUM)
			*n_headers = entry.a_un.a_val < HEADERS_MAX ? entry.a_un.a_val : HEADERS_MAX;
		else if (entry.a_type == AT_ENTRY)
			objects->entry = entry.a_un.a_val;
		else if (entry.a_type == AT_BASE)
			objects->interpreter = entry.a_un.a_val;
	}
	fclose(file);
	return 0;
}

/* struct r_debug, which DT_DEBUG of the program points to: its list of objects. 0 = none. */
static ml_u64 find_list(ml_u32 pid, ml_u64 headers, ml_u64 n_headers)
{
	ml_u64 bias = 0, dynamic = 0, list = 0;
	Elf64_Phdr header;
	Elf64_Dyn entry;

	for (ml_u64 i = 0; i < n_headers && !ml_target_read(pid, headers + i * sizeof(header), &header, sizeof(header)); i++) {
		if (header.p_type == PT_PHDR)
			bias = headers - header.p_vaddr;
		else if (header.p_type == PT_DYNAMIC)
			dynamic = header.p_vaddr;
	}
	for (int i = 0; dynamic && i < DYNAMIC_MAX; i++) {
		if (ml_target_read(pid, bias + dynamic + (ml_u64)i * sizeof(entry), &entry, sizeof(entry)) ||
		    entry.d_tag == DT_NULL)
			break;
		if (entry.d_tag == DT_DEBUG && entry.d_un.d_val)
			return ml_target_read(pid, entry.d_un.d_val + 8, &list, sizeof(list)) ? 0 : list;
	}
	return 0;
}

static int append(struct ml_target_objects *objects, const ml_u64 map[5])
{
	struct ml_target_object *more = objects->objects;
	struct tables tables = { 0 };

	if (objects->n % 64 == 0)
		more = realloc(more, (objects->n + 64) * sizeof(*more));
	if (!more)
		return -1;
	objects->objects = more;
	more += objects->n++;
	*more = (struct ml_target_object){ .bias = map[0], .dynamic = map[2] };
	read_text(objects->pid, map[1], more->path, sizeof(more->path));
	read_dynamic(objects->pid, more, &tables);
	more->n_symbols = more->symbols && more->strings ? count_symbols(objects->pid, &tables) : 0;
	return 0;
}

int ml_target_objects_read(struct ml_target_objects *objects, ml_u32 pid)
{
	ml_u64 headers = 0, n_headers = 0, at, map[5]; /* struct link_map: l_addr, l_name, l_ld, l_next, l_prev */

	*objects = (struct ml_target_objects){ .pid = pid };
	if (read_auxv(pid, objects, &headers, &n_headers))
		return -1;
	at = find_list(pid, headers, n_headers);
	for (int i = 0; i < ML_TARGET_OBJECTS_MAX && at && !ml_target_read(pid, at, map, sizeof(map)); i++, at = map[3])
		if (append(objects, map))
			return -1;
	return 0;
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

	return symbol->st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_GNU_IFUNC) &&
	       symbol->st_name < strings_bytes;
}

struct ml_target_symbol *ml_target_functions(ml_u32 pid, const struct ml_target_object *object, size_t *n)
{
	size_t room = object->n_symbols * sizeof(struct ml_target_symbol);
	struct ml_target_symbol *found;
	Elf64_Sym *symbols;
	char *strings;

	*n = 0;
	if (!object->n_symbols || !object->strings_bytes || object->strings_bytes > STRINGS_MAX)
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
			found[(*n)++] = (struct ml_target_symbol){ strings + symbols[i].st_name,
								   object->bias + symbols[i].st_value,
								   object->bias + symbols[i].st_value + symbols[i].st_size };
	free(symbols);
	qsort(found, *n, sizeof(*found), compare_starts);
	return found;
}

ml_u64 ml_target_function(ml_u32 pid, const struct ml_target_object *object, const char *name)
{
	size_t n;
	struct ml_target_symbol *functions = ml_target_functions(pid, object, &n);
	ml_u64 address = 0;

	for (size_t i = 0; i < n && !address; i++)
		if (!strcmp(functions[i].name, name))
			address = functions[i].start;
	free(functions);
	return address;
}

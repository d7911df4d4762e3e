// SPDX-License-Identifier: Apache-2.0
/* Sources: <link.h> (r_debug), System V gABI "Dynamic Section" and "Hash Table"; .gnu.hash as binutils writes it. */
#define _GNU_SOURCE
#include "agent/process/loaded_objects.h"

#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cfi/remote_memory.h"

#define OBJECTS_MAX 4096
#define DYNAMIC_MAX 4096
#define CHAIN_MAX 65536
#define NAME_BYTES_MAX 256

struct object {
	ml_u64 bias, dynamic; /* link_map.l_addr, .l_ld */
	ml_u64 symbols, strings, gnu_hash, hash;
};

static struct ml_remote_memory memory;
static ml_u32 target;

static bool get(ml_u64 address, void *into, size_t bytes)
{
	return !ml_remote_memory_read(&memory, target, address, into, bytes);
}

static ml_u32 get_u32(ml_u64 address)
{
	ml_u32 value = 0;

	return get(address, &value, sizeof(value)) ? value : 0;
}

/* glibc relocates these entries in memory, bionic and musl do not. */
static ml_u64 relocated(const struct object *object, ml_u64 value)
{
	return value < object->bias ? value + object->bias : value;
}

static void read_dynamic(struct object *object)
{
	Elf64_Dyn entry;

	for (int i = 0; i < DYNAMIC_MAX; i++) {
		if (!get(object->dynamic + (ml_u64)i * sizeof(entry), &entry, sizeof(entry)) || entry.d_tag == DT_NULL)
			return;
		if (entry.d_tag == DT_SYMTAB)
			object->symbols = relocated(object, entry.d_un.d_ptr);
		else if (entry.d_tag == DT_STRTAB)
			object->strings = relocated(object, entry.d_un.d_ptr);
		else if (entry.d_tag == DT_GNU_HASH)
			object->gnu_hash = relocated(object, entry.d_un.d_ptr);
		else if (entry.d_tag == DT_HASH)
			object->hash = relocated(object, entry.d_un.d_ptr);
	}
}

static bool is_definition(const struct object *object, ml_u32 index, const char *name)
{
	char found[NAME_BYTES_MAX];
	size_t bytes = strlen(name) + 1;
	Elf64_Sym symbol;
	int type;

	if (bytes > sizeof(found) || !get(object->symbols + (ml_u64)index * sizeof(symbol), &symbol, sizeof(symbol)))
		return false;
	type = ELF64_ST_TYPE(symbol.st_info);
	return symbol.st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_GNU_IFUNC) &&
	       get(object->strings + symbol.st_name, found, bytes) && !memcmp(found, name, bytes);
}

static bool is_in_gnu_hash(const struct object *object, const char *name)
{
	ml_u32 head[4]; /* buckets, first symbol, words of the Bloom filter, its shift */
	ml_u32 hash = 5381, index, entry;
	ml_u64 chain;

	if (!get(object->gnu_hash, head, sizeof(head)) || !head[0])
		return false;
	for (const char *c = name; *c; c++)
		hash = hash * 33 + (unsigned char)*c;
	chain = object->gnu_hash + sizeof(head) + head[2] * 8ull;
	index = get_u32(chain + hash % head[0] * 4ull);
	chain += head[0] * 4ull;
	if (index < head[1])
		return false;
	for (int i = 0; i < CHAIN_MAX && get(chain + (index - head[1]) * 4ull, &entry, 4); i++, index++) {
		if ((entry | 1) == (hash | 1) && is_definition(object, index, name))
			return true;
		if (entry & 1)
			return false;
	}
	return false;
}

static bool is_in_hash(const struct object *object, const char *name)
{
	ml_u32 n_buckets = get_u32(object->hash), hash = 0, index;

	if (!n_buckets)
		return false;
	for (const char *c = name; *c; c++) {
		hash = (hash << 4) + (unsigned char)*c;
		hash = (hash ^ (hash & 0xf0000000u) >> 24) & 0x0fffffffu;
	}
	index = get_u32(object->hash + 8 + hash % n_buckets * 4ull);
	for (int i = 0; i < CHAIN_MAX && index; i++) {
		if (is_definition(object, index, name))
			return true;
		index = get_u32(object->hash + 8 + (n_buckets + (ml_u64)index) * 4);
	}
	return false;
}

static void print_object(struct object *object, char *const *names, int n_names)
{
	read_dynamic(object);
	printf("%llx", (unsigned long long)object->dynamic);
	for (int i = 0; i < n_names && object->symbols && object->strings; i++)
		if (object->gnu_hash ? is_in_gnu_hash(object, names[i]) : object->hash && is_in_hash(object, names[i]))
			printf(" %s", names[i]);
	printf("\n");
}

/* Address of struct r_debug: DT_DEBUG of the executable, whose program headers AT_PHDR points to. 0 = none. */
static ml_u64 find_debug(ml_u64 headers, ml_u64 n_headers)
{
	ml_u64 bias = 0, dynamic = 0;
	Elf64_Phdr header;
	Elf64_Dyn entry;

	for (ml_u64 i = 0; i < n_headers && get(headers + i * sizeof(header), &header, sizeof(header)); i++) {
		if (header.p_type == PT_PHDR)
			bias = headers - header.p_vaddr;
		else if (header.p_type == PT_DYNAMIC)
			dynamic = header.p_vaddr;
	}
	for (int i = 0; dynamic && i < DYNAMIC_MAX; i++) {
		if (!get(bias + dynamic + (ml_u64)i * sizeof(entry), &entry, sizeof(entry)) || entry.d_tag == DT_NULL)
			break;
		if (entry.d_tag == DT_DEBUG)
			return entry.d_un.d_val;
	}
	return 0;
}

static bool read_auxv(int pid, ml_u64 *headers, ml_u64 *n_headers)
{
	Elf64_auxv_t entry;
	char path[32];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/auxv", pid);
	file = fopen(path, "re");
	if (!file)
		return false;
	while (fread(&entry, sizeof(entry), 1, file) == 1 && entry.a_type != AT_NULL) {
		if (entry.a_type == AT_PHDR)
			*headers = entry.a_un.a_val;
		else if (entry.a_type == AT_PHNUM)
			*n_headers = entry.a_un.a_val;
	}
	fclose(file);
	return true;
}

int ml_loaded_objects_print(int pid, char *const *names, int n_names)
{
	ml_u64 headers = 0, n_headers = 0, debug, map[5]; /* struct link_map: l_addr, l_name, l_ld, l_next, l_prev */
	ml_u64 at = 0;

	target = (ml_u32)pid;
	if (!read_auxv(pid, &headers, &n_headers)) {
		fprintf(stderr, "process %d cannot be read: %s\n", pid, strerror(errno));
		return 4;
	}
	debug = find_debug(headers, n_headers);
	if (!debug || !get(debug + 8, &at, sizeof(at))) /* r_debug.r_map */
		return 0;
	for (int i = 0; i < OBJECTS_MAX && at && get(at, map, sizeof(map)); i++, at = map[3]) {
		struct object object = { .bias = map[0], .dynamic = map[2] };

		print_object(&object, names, n_names);
	}
	return 0;
}

int ml_vdso_print(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long long start, end;
	char line[512];

	while (maps && fgets(line, sizeof(line), maps))
		if (strstr(line, "[vdso]") && sscanf(line, "%llx-%llx", &start, &end) == 2)
			fwrite((const void *)(size_t)start, 1, (size_t)(end - start), stdout);
	if (maps)
		fclose(maps);
	return fflush(stdout) ? 1 : 0;
}

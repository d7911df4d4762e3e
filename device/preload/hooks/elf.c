// SPDX-License-Identifier: Apache-2.0
#include "preload/hooks/elf.h"

#include "preload/freestanding/bytes.h"

#define DYNAMIC_ENTRIES_MAX 4096u
#define CHAIN_MAX (1u << 20) /* more symbols than any chain has */
#define VERSIONS_MAX 4096
#define DEFINITIONS_MAX 8u /* of one name */
#define HIDDEN 0x8000u /* bit of an entry of DT_VERSYM */
#define GLOBAL 1u /* entry of DT_VERSYM: no version */

/* Android's packed relocations: bionic/libc/include/elf.h. */
#ifndef DT_ANDROID_REL
#define DT_ANDROID_REL 0x6000000f
#define DT_ANDROID_RELSZ 0x60000010
#define DT_ANDROID_RELA 0x60000011
#define DT_ANDROID_RELASZ 0x60000012
#endif

static int can_read(const struct ml_elf *elf, unsigned long address, size_t bytes)
{
	return ml_mappings_can_read(elf->maps, address, bytes);
}

/* glibc relocates these addresses in place; musl and bionic leave the file's. */
static unsigned long address_of(const struct ml_elf *elf, unsigned long value)
{
	const struct ml_own_mapping *range;

	if (value >= elf->base)
		return value;
	range = ml_mappings_find(elf->maps, elf->base + value);
	return range ? elf->base + value : 0;
}

/* The field for each tag of the dynamic section; all are unsigned long. */
static const struct {
	long tag;
	unsigned int offset;
	int is_address;
} fields[] = {
#define FIELD(tag, field, is_address) { tag, offsetof(struct ml_elf, field), is_address },
	FIELD(DT_JMPREL, plt.address, 1) FIELD(DT_PLTRELSZ, plt.bytes, 0) FIELD(DT_REL, rel.address, 1)
		FIELD(DT_RELSZ, rel.bytes, 0) FIELD(DT_RELA, rela.address, 1) FIELD(DT_RELASZ, rela.bytes, 0)
			FIELD(DT_ANDROID_REL, packed.address, 1) FIELD(DT_ANDROID_RELSZ, packed.bytes, 0)
				FIELD(DT_ANDROID_RELA, packed.address, 1) FIELD(DT_ANDROID_RELASZ, packed.bytes, 0)
					FIELD(DT_SYMTAB, symbols, 1) FIELD(DT_STRSZ, string_bytes, 0)
						FIELD(DT_VERSYM, versions, 1) FIELD(DT_VERDEF, definitions, 1)
							FIELD(DT_GNU_HASH, gnu_hash, 1) FIELD(DT_HASH, hash, 1)
#undef FIELD
};

static void note_entry(struct ml_elf *elf, const ElfW(Dyn) * entry)
{
	long tag = (long)entry->d_tag;
	unsigned long value = entry->d_un.d_val;

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (fields[i].tag == tag)
			*(unsigned long *)(void *)((char *)elf + fields[i].offset) =
				fields[i].is_address ? address_of(elf, value) : value;
	if (tag == DT_STRTAB)
		elf->strings = (const char *)address_of(elf, value);
	if (tag == DT_PLTREL)
		elf->plt.has_addends = value == DT_RELA;
	elf->packed.has_addends |= tag == DT_ANDROID_RELA;
	elf->has_runpath |= tag == DT_RPATH || tag == DT_RUNPATH;
	elf->is_program |= tag == DT_DEBUG;
	elf->is_symbolic |= tag == DT_SYMBOLIC || (tag == DT_FLAGS && value & DF_SYMBOLIC);
}

static int is_sound(const struct ml_elf *elf, const struct ml_elf_table *table)
{
	return !table->address || can_read(elf, table->address, table->bytes);
}

int ml_elf_open(struct ml_elf *elf, const struct ml_mappings *maps, unsigned long base, unsigned long dynamic)
{
	const ElfW(Dyn) *entry = (const ElfW(Dyn) *)dynamic;
	unsigned int i;

	*elf = (struct ml_elf){ .maps = maps, .base = base, .dynamic = dynamic, .rela.has_addends = 1 };
	if (dynamic % sizeof(long))
		return -1;
	for (i = 0; i < DYNAMIC_ENTRIES_MAX && can_read(elf, dynamic + i * sizeof(*entry), sizeof(*entry)) &&
		    entry[i].d_tag != DT_NULL;
	     i++)
		note_entry(elf, &entry[i]);
	if (i == DYNAMIC_ENTRIES_MAX || !can_read(elf, dynamic + i * sizeof(*entry), sizeof(*entry)))
		return -1;
	if (!elf->symbols || elf->symbols % sizeof(long) || !elf->strings || !elf->string_bytes ||
	    !can_read(elf, (unsigned long)elf->strings, elf->string_bytes) || elf->strings[elf->string_bytes - 1] != '\0')
		return -1;
	return -!(is_sound(elf, &elf->plt) && is_sound(elf, &elf->rel) && is_sound(elf, &elf->rela) &&
		  is_sound(elf, &elf->packed));
}

static const ElfW(Sym) * symbol_at(const struct ml_elf *elf, unsigned long index)
{
	unsigned long address;

	if (__builtin_mul_overflow(index, sizeof(ElfW(Sym)), &address) ||
	    __builtin_add_overflow(elf->symbols, address, &address) || !can_read(elf, address, sizeof(ElfW(Sym))))
		return NULL;
	return (const ElfW(Sym) *)address;
}

const char *ml_elf_symbol_name(const struct ml_elf *elf, unsigned long index)
{
	const ElfW(Sym) *symbol = symbol_at(elf, index);

	return symbol && symbol->st_name < elf->string_bytes ? elf->strings + symbol->st_name : NULL;
}

unsigned long ml_elf_plt_entry(const struct ml_elf *elf, unsigned long index)
{
	const ElfW(Sym) *symbol = elf->is_program ? symbol_at(elf, index) : NULL;

	return symbol && symbol->st_shndx == SHN_UNDEF && symbol->st_value ? elf->base + symbol->st_value : 0;
}

/* The symbol's version index. HIDDEN: only references to that version bind to it. */
static unsigned int version_at(const struct ml_elf *elf, unsigned long index)
{
	unsigned long address = elf->versions + index * sizeof(ElfW(Half));

	return !elf->versions || address % sizeof(ElfW(Half)) || !can_read(elf, address, sizeof(ElfW(Half))) ?
		       0 :
		       *(const ElfW(Half) *)address;
}

/* The function of this name after `skip` others. */
struct wanted {
	const char *name;
	unsigned int skip;
};

static unsigned int type_at(const struct ml_elf *elf, unsigned long index)
{
	const ElfW(Sym) *symbol = symbol_at(elf, index);

	return symbol ? symbol->st_info & 0xf : STT_NOTYPE;
}

static int is_wanted(const struct ml_elf *elf, unsigned long index, struct wanted *wanted)
{
	const ElfW(Sym) *symbol = symbol_at(elf, index);
	unsigned int type = type_at(elf, index), binding = symbol ? symbol->st_info >> 4 : STB_LOCAL;

	return symbol && symbol->st_shndx != SHN_UNDEF && symbol->st_value &&
	       (type == STT_FUNC || type == STT_NOTYPE || type == STT_GNU_IFUNC) && binding != STB_LOCAL &&
	       symbol->st_name < elf->string_bytes && ml_is_same_text(elf->strings + symbol->st_name, wanted->name) &&
	       wanted->skip-- == 0;
}

static const ElfW(Word) * words(const struct ml_elf *elf, unsigned long address, size_t n)
{
	return address % sizeof(ElfW(Word)) == 0 && can_read(elf, address, n * sizeof(ElfW(Word))) ?
		       (const ElfW(Word) *)address :
		       NULL;
}

/* Long division: some 32-bit Arm processors cannot divide, and there is no compiler library. */
static ElfW(Word) rest_of(ElfW(Word) value, ElfW(Word) divisor)
{
	unsigned long long rest = 0;

	for (int bit = 31; bit >= 0; bit--) {
		rest = rest << 1 | (value >> bit & 1);
		if (rest >= divisor)
			rest -= divisor;
	}
	return (ElfW(Word))rest;
}

static ElfW(Word) gnu_hash_of(const char *name)
{
	ElfW(Word) hash = 5381;

	while (*name)
		hash = hash * 33 + (unsigned char)*name++;
	return hash;
}

static unsigned long find_by_gnu_hash(const struct ml_elf *elf, struct wanted *wanted)
{
	const ElfW(Word) *head = words(elf, elf->gnu_hash, 4), *bucket, *chain;
	ElfW(Word) hash = gnu_hash_of(wanted->name);
	unsigned long buckets, chains;

	if (!head || !head[0])
		return 0;
	buckets = elf->gnu_hash + 4 * sizeof(*head) + (unsigned long)head[2] * sizeof(ElfW(Addr));
	bucket = words(elf, buckets + rest_of(hash, head[0]) * sizeof(*head), 1);
	if (!bucket || *bucket < head[1])
		return 0;
	chains = buckets + (unsigned long)head[0] * sizeof(*head);
	for (unsigned long i = *bucket, n = 0; n < CHAIN_MAX; i++, n++) {
		chain = words(elf, chains + (i - head[1]) * sizeof(*head), 1);
		if (!chain)
			return 0;
		if ((*chain | 1) == (hash | 1) && is_wanted(elf, i, wanted))
			return i;
		if (*chain & 1)
			return 0;
	}
	return 0;
}

static ElfW(Word) hash_of(const char *name)
{
	ElfW(Word) hash = 0, high;

	while (*name) {
		hash = (hash << 4) + (unsigned char)*name++;
		high = hash & 0xf0000000;
		hash ^= high >> 24;
		hash &= ~high;
	}
	return hash;
}

static unsigned long find_by_hash(const struct ml_elf *elf, struct wanted *wanted)
{
	const ElfW(Word) *head = words(elf, elf->hash, 2), *next;

	if (!head || !head[0])
		return 0;
	next = words(elf, elf->hash + (2ul + rest_of(hash_of(wanted->name), head[0])) * sizeof(*head), 1);
	for (unsigned long n = 0; next && *next && n < CHAIN_MAX; n++) {
		if (is_wanted(elf, *next, wanted))
			return *next;
		next = words(elf, elf->hash + (2ul + head[0] + *next) * sizeof(*head), 1);
	}
	return 0;
}

/* The symbol's index; 0, which no function has, if there is none. */
static unsigned long find(const struct ml_elf *elf, const char *name, unsigned int skip)
{
	struct wanted wanted = { name, skip };

	return elf->gnu_hash ? find_by_gnu_hash(elf, &wanted) : elf->hash ? find_by_hash(elf, &wanted) : 0;
}

/* Elf_Verdef.vd_hash of a version index. */
static ElfW(Word) version_hash(const struct ml_elf *elf, unsigned int number)
{
	unsigned long address = elf->definitions;

	for (int n = 0; address && n < VERSIONS_MAX; n++) {
		const ElfW(Verdef) *definition = (const ElfW(Verdef) *)address;

		if (address % sizeof(ElfW(Word)) || !can_read(elf, address, sizeof(*definition)))
			return 0;
		if ((definition->vd_ndx & ~HIDDEN) == (number & ~HIDDEN))
			return definition->vd_hash;
		if (!definition->vd_next || __builtin_add_overflow(address, definition->vd_next, &address))
			return 0;
	}
	return 0;
}

unsigned int ml_elf_definitions(const struct ml_elf *elf, const char *name, struct ml_elf_definition *found, unsigned int max)
{
	unsigned int n = 0;
	unsigned long index;

	for (; n < max && (index = find(elf, name, n)) != 0; n++) {
		unsigned int number = version_at(elf, index);

		found[n] = (struct ml_elf_definition){ .address = elf->base + symbol_at(elf, index)->st_value,
						       .version = (number & ~HIDDEN) > GLOBAL ? version_hash(elf, number) : 0,
						       .is_default = !(number & HIDDEN),
						       .is_chosen = type_at(elf, index) == STT_GNU_IFUNC };
	}
	return n;
}

unsigned long ml_elf_find(const struct ml_elf *elf, const char *name)
{
	struct ml_elf_definition found[DEFINITIONS_MAX];
	unsigned int n = ml_elf_definitions(elf, name, found, DEFINITIONS_MAX);

	for (unsigned int i = 0; i < n; i++)
		if (found[i].is_default && !found[i].is_chosen)
			return found[i].address;
	return 0;
}

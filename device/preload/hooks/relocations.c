// SPDX-License-Identifier: Apache-2.0
#include "preload/hooks/relocations.h"

#define PACKED_MAX (1ul << 26) /* relocations in one table; a higher count is forged */

#if defined(__x86_64__)
enum { JUMP_SLOT = 7, GLOB_DAT = 6, ABSOLUTE = 1 }; /* R_X86_64_64 */
#elif defined(__aarch64__)
enum { JUMP_SLOT = 1026, GLOB_DAT = 1025, ABSOLUTE = 257 }; /* R_AARCH64_ABS64 */
#elif defined(__arm__)
enum { JUMP_SLOT = 22, GLOB_DAT = 21, ABSOLUTE = 2 }; /* R_ARM_ABS32 */
#endif

#if __SIZEOF_LONG__ == 8
#define SYMBOL_OF(info) ((unsigned long)((info) >> 32))
#define TYPE_OF(info) ((unsigned long)((info) & 0xffffffffu))
#else
#define SYMBOL_OF(info) ((unsigned long)((info) >> 8))
#define TYPE_OF(info) ((unsigned long)((info) & 0xffu))
#endif

struct visitor {
	unsigned long base;
	void (*visit)(void *context, const struct ml_relocation *relocation);
	void *context;
};

static void report(const struct visitor *visitor, unsigned long offset, unsigned long info, long addend)
{
	unsigned long type = TYPE_OF(info);
	struct ml_relocation relocation = { visitor->base + offset, SYMBOL_OF(info), type == JUMP_SLOT, addend };

	if (relocation.symbol && (type == JUMP_SLOT || type == GLOB_DAT || type == ABSOLUTE))
		visitor->visit(visitor->context, &relocation);
}

static void each_plain(const struct visitor *visitor, const struct ml_elf_table *table)
{
	const ElfW(Rela) *rela = (const ElfW(Rela) *)table->address;
	const ElfW(Rel) *rel = (const ElfW(Rel) *)table->address;

	if (!table->address || table->address % sizeof(long))
		return;
	if (table->has_addends)
		for (size_t i = 0; i < table->bytes / sizeof(*rela); i++)
			report(visitor, rela[i].r_offset, rela[i].r_info, rela[i].r_addend);
	else
		for (size_t i = 0; i < table->bytes / sizeof(*rel); i++)
			report(visitor, rel[i].r_offset, rel[i].r_info, 0);
}

/* ---- packed: bionic/linker/linker_reloc_iterators.h ----------------------------------------------------- */

enum {
	GROUPED_BY_INFO = 1,
	GROUPED_BY_OFFSET_DELTA = 2,
	GROUPED_BY_ADDEND = 4,
	HAS_ADDEND = 8,
};

struct packed {
	const unsigned char *next;
	const unsigned char *end;
	int is_malformed;
};

/* Signed LEB128 (DWARF 5, 7.6). */
static long take_number(struct packed *packed)
{
	unsigned long value = 0;
	unsigned int shift = 0;
	unsigned char byte;

	do {
		if (packed->next == packed->end || shift >= sizeof(long) * 8) {
			packed->is_malformed = 1;
			return 0;
		}
		byte = *packed->next++;
		value |= (unsigned long)(byte & 0x7f) << shift;
		shift += 7;
	} while (byte & 0x80);
	if (byte & 0x40 && shift < sizeof(long) * 8)
		value |= ~0ul << shift;
	return (long)value;
}

struct state {
	unsigned long offset;
	unsigned long info;
	unsigned long addend;
};

/*
 * Reads a group of at most `most` relocations; 0: malformed. Checked first, since some groups have no bytes for each
 * relocation.
 */
static unsigned long take_group(struct packed *packed, const struct visitor *visitor, struct state *state, unsigned long most)
{
	unsigned long size = (unsigned long)take_number(packed), flags = (unsigned long)take_number(packed), delta = 0;

	if (size > most)
		return 0;
	if (flags & GROUPED_BY_OFFSET_DELTA)
		delta = (unsigned long)take_number(packed);
	if (flags & GROUPED_BY_INFO)
		state->info = (unsigned long)take_number(packed);
	if ((flags & (HAS_ADDEND | GROUPED_BY_ADDEND)) == (HAS_ADDEND | GROUPED_BY_ADDEND))
		state->addend += (unsigned long)take_number(packed);
	else if (!(flags & HAS_ADDEND))
		state->addend = 0;
	for (unsigned long i = 0; i < size && !packed->is_malformed; i++) {
		state->offset += flags & GROUPED_BY_OFFSET_DELTA ? delta : (unsigned long)take_number(packed);
		if (!(flags & GROUPED_BY_INFO))
			state->info = (unsigned long)take_number(packed);
		if ((flags & (HAS_ADDEND | GROUPED_BY_ADDEND)) == HAS_ADDEND)
			state->addend += (unsigned long)take_number(packed);
		if (!packed->is_malformed)
			report(visitor, state->offset, state->info, (long)state->addend);
	}
	return size;
}

static int each_packed(const struct visitor *visitor, const struct ml_elf_table *table)
{
	const unsigned char *bytes = (const unsigned char *)table->address;
	struct packed packed = { NULL, NULL, 0 };
	struct state state = { 0, 0, 0 };
	unsigned long count, n = 0;

	if (!bytes)
		return 0;
	if (table->bytes < 4 || bytes[0] != 'A' || bytes[1] != 'P' || bytes[2] != 'S' || bytes[3] != '2')
		return -1;
	packed.next = bytes + 4;
	packed.end = bytes + table->bytes;
	count = (unsigned long)take_number(&packed);
	state.offset = (unsigned long)take_number(&packed);
	if (count > PACKED_MAX)
		return -1;
	while (n < count && !packed.is_malformed) {
		unsigned long size = take_group(&packed, visitor, &state, count - n);

		if (!size)
			return -1;
		n += size;
	}
	return packed.is_malformed ? -1 : 0;
}

int ml_relocations_each(const struct ml_elf *elf, void (*visit)(void *context, const struct ml_relocation *relocation),
			void *context)
{
	struct visitor visitor = { elf->base, visit, context };

	each_plain(&visitor, &elf->plt);
	each_plain(&visitor, &elf->rel);
	each_plain(&visitor, &elf->rela);
	return each_packed(&visitor, &elf->packed);
}

// SPDX-License-Identifier: Apache-2.0
/* CIEs and FDEs of .eh_frame: their programs and the code that they describe (LSB 5.0 §10.6.1). */
#include "cfi.h"

#include <stddef.h>

#define ENTRY_BYTES_MAX (ML_CFI_PROGRAM_BYTES_MAX + 4096)
#define AUGMENTATION_MAX 16
#define DW_EH_PE_PCREL 0x10
#define DW_EH_PE_INDIRECT 0x80
#define DW_EH_PE_OMIT 0xff

ml_u64 ml_cfi_pointer(struct ml_cursor *cursor, ml_u8 encoding)
{
	/* DW_EH_PE_absptr, udata2, udata4, udata8, signed, sdata2, sdata4, sdata8 (LSB 5.0 §10.5.1); 0 = not supported */
	static const ml_u8 bytes_of_format[16] = { 8, 0, 2, 4, 8, 0, 0, 0, 8, 0, 2, 4, 8 };
	ml_u8 bytes = bytes_of_format[encoding & 0xf];
	ml_u8 application = encoding & 0xf0;
	ml_u64 field_address = cursor->at;
	ml_u64 value;

	if (!bytes || (application && application != DW_EH_PE_PCREL)) {
		cursor->is_overrun = 1;
		return 0;
	}
	value = ml_cursor_number(cursor, bytes);
	if (encoding & 0x8 && bytes < 8 && value >> (8 * bytes - 1))
		value |= ~0ull << 8 * bytes;
	return application ? value + field_address : value;
}

static enum ml_cfi_found result_of(const struct ml_cursor *cursor)
{
	if (cursor->is_unreadable)
		return ML_CFI_UNREADABLE;
	return cursor->is_overrun ? ML_CFI_ABSENT : ML_CFI_FOUND;
}

/* Opens the entry behind its length: *id is the word that distinguishes CIEs from FDEs, *id_at its address. */
static enum ml_cfi_found open_entry(struct ml_cursor *entry, struct ml_remote_memory *memory, ml_u32 pid, ml_u64 address,
				    ml_u64 *id_at, ml_u32 *id)
{
	ml_u64 bytes;

	ml_cursor_open(entry, memory, pid, address, address + 8);
	bytes = ml_cursor_number(entry, 4);
	*id_at = entry->at;
	*id = (ml_u32)ml_cursor_number(entry, 4);
	/* 0: the section's end. 0xffffffff, DWARF's 64-bit format, is among what is too long. */
	if (ml_cursor_is_good(entry) && (bytes < 4 || bytes > ENTRY_BYTES_MAX || *id_at + bytes < *id_at))
		return ML_CFI_ABSENT;
	entry->end = *id_at + bytes;
	return result_of(entry);
}

/* The data of the augmentation string's letters. One that is not known ends the reading: all is skipped by length. */
static void read_augmentation(struct ml_cursor *entry, const ml_u8 *letters, struct ml_cie *cie)
{
	for (; *letters; letters++) {
		ml_u8 encoding;

		switch (*letters) {
		case 'R':
			cie->pointer_encoding = (ml_u8)ml_cursor_number(entry, 1);
			break;
		case 'P':
			encoding = (ml_u8)ml_cursor_number(entry, 1);
			if (encoding != DW_EH_PE_OMIT)
				ml_cfi_pointer(entry, encoding & (ml_u8)~DW_EH_PE_INDIRECT);
			break;
		case 'L':
			ml_cursor_skip(entry, 1);
			break;
		case 'S':
			cie->is_signal_frame = 1;
			break;
		case 'B': /* arm64: return addresses are signed by the B key; G: a tagged frame. No data. */
		case 'G':
			break;
		default:
			return;
		}
	}
}

static enum ml_cfi_found read_cie(struct ml_remote_memory *memory, ml_u32 pid, ml_u64 address, struct ml_cie *cie)
{
	ml_u8 letters[AUGMENTATION_MAX + 1] = { 0 };
	struct ml_cursor entry;
	ml_u64 id_at, data_end;
	ml_u32 id, n = 0;
	ml_u8 version;
	enum ml_cfi_found found = open_entry(&entry, memory, pid, address, &id_at, &id);

	if (found != ML_CFI_FOUND || id)
		return found == ML_CFI_FOUND ? ML_CFI_ABSENT : found;
	version = (ml_u8)ml_cursor_number(&entry, 1);
	do {
		letters[n] = (ml_u8)ml_cursor_number(&entry, 1);
	} while (letters[n] && ++n < AUGMENTATION_MAX);
	/* version 4 has sizes of addresses and segments that .eh_frame has no use for; any string but z… is GCC 2's */
	if (n == AUGMENTATION_MAX || (version != 1 && version != 3) || (n && letters[0] != 'z'))
		return entry.is_unreadable ? ML_CFI_UNREADABLE : ML_CFI_ABSENT;
	*cie = (struct ml_cie){ .has_augmentation_data = letters[0] == 'z' };
	cie->code_align = ml_cursor_uleb(&entry);
	cie->data_align = ml_cursor_sleb(&entry);
	cie->return_register = version == 1 ? ml_cursor_number(&entry, 1) : ml_cursor_uleb(&entry);
	if (cie->has_augmentation_data) {
		ml_u64 bytes = ml_cursor_uleb(&entry);

		data_end = entry.at + bytes;
		if (bytes > entry.end - entry.at)
			return entry.is_unreadable ? ML_CFI_UNREADABLE : ML_CFI_ABSENT;
		read_augmentation(&entry, letters + 1, cie);
		if (entry.at > data_end)
			entry.is_overrun = 1;
		entry.at = data_end;
	}
	cie->program = entry.at;
	cie->end = entry.end;
	return result_of(&entry);
}

enum ml_cfi_found ml_cfi_read_fde(struct ml_remote_memory *memory, ml_u32 pid, ml_u64 address, struct ml_fde *fde)
{
	struct ml_cursor entry;
	ml_u64 id_at, bytes;
	ml_u32 id;
	enum ml_cfi_found found = open_entry(&entry, memory, pid, address, &id_at, &id);

	if (found == ML_CFI_FOUND)
		found = id ? read_cie(memory, pid, id_at - id, &fde->cie) : ML_CFI_ABSENT;
	if (found != ML_CFI_FOUND)
		return found;
	fde->start = ml_cfi_pointer(&entry, fde->cie.pointer_encoding);
	bytes = ml_cfi_pointer(&entry, fde->cie.pointer_encoding & 0x0f);
	fde->limit = fde->start + bytes;
	if (fde->cie.has_augmentation_data)
		ml_cursor_skip(&entry, ml_cursor_uleb(&entry));
	fde->program = entry.at;
	fde->end = entry.end;
	if (fde->limit < fde->start)
		entry.is_overrun = 1;
	return result_of(&entry);
}

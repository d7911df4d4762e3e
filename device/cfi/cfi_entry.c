// SPDX-License-Identifier: Apache-2.0
/* CIEs and FDEs of .eh_frame: their programs and the code that they describe (LSB 5.0 §10.6.1). */
#include "cfi.h"

#define AUGMENTATION_MAX 16

static enum ml_cfi_found result_of(const struct ml_cfi_bytes *entry)
{
	return entry->is_overrun ? ML_CFI_ABSENT : ML_CFI_FOUND;
}

/* The entry at an address: the word that distinguishes CIEs from FDEs, and what follows it. */
static enum ml_cfi_found open_entry(struct ml_remote_memory *memory, ml_u32 pid, ml_u64 address, ml_u32 *id,
				    struct ml_cfi_bytes *entry)
{
	ml_u32 head[2]; /* bytes behind this word, id */

	if (ml_remote_memory_read(memory, pid, address, head, sizeof(head)))
		return ML_CFI_UNREADABLE;
	/* 0: the section's end. 0xffffffff, DWARF's 64-bit format, is among what is too long. */
	if (head[0] < 4 || head[0] > ML_REMOTE_SPAN_BYTES)
		return ML_CFI_ABSENT;
	*id = head[1];
	return ml_remote_memory_open(memory, pid, address + 8, address + 4 + head[0], entry) ? ML_CFI_UNREADABLE : ML_CFI_FOUND;
}

/* The data of the augmentation string's letters. One that is not known ends the reading: all is skipped by length. */
static void read_augmentation(struct ml_cfi_bytes *data, const ml_u8 *letters, struct ml_cie *cie)
{
	for (; *letters; letters++) {
		ml_u8 encoding;

		switch (*letters) {
		case 'R': cie->pointer_encoding = (ml_u8)ml_cfi_number(data, 1); break;
		case 'P':
			encoding = (ml_u8)ml_cfi_number(data, 1);
			if (encoding != ML_DW_EH_PE_OMIT)
				ml_cfi_pointer(data, encoding & (ml_u8)~ML_DW_EH_PE_INDIRECT);
			break;
		case 'L': ml_cfi_number(data, 1); break;
		case 'S': cie->is_signal_frame = 1; break;
		case 'B': /* arm64: return addresses are signed by the B key; G: a tagged frame. No data. */
		case 'G': break;
		default: return;
		}
	}
}

static enum ml_cfi_found read_cie(struct ml_remote_memory *memory, ml_u32 pid, ml_u64 address, struct ml_cie *cie)
{
	ml_u8 letters[AUGMENTATION_MAX + 1] = { 0 }, version;
	struct ml_cfi_bytes entry, data;
	ml_u32 id, n = 0;
	enum ml_cfi_found found = open_entry(memory, pid, address, &id, &entry);

	if (found != ML_CFI_FOUND || id)
		return found == ML_CFI_FOUND ? ML_CFI_ABSENT : found;
	version = (ml_u8)ml_cfi_number(&entry, 1);
	do {
		letters[n] = (ml_u8)ml_cfi_number(&entry, 1);
	} while (letters[n] && ++n < AUGMENTATION_MAX);
	/* version 4 has sizes of addresses and segments that .eh_frame has no use for; any string but z… is GCC 2's */
	if (n == AUGMENTATION_MAX || (version != 1 && version != 3) || (n && letters[0] != 'z'))
		return ML_CFI_ABSENT;
	*cie = (struct ml_cie){ .has_augmentation_data = letters[0] == 'z' };
	cie->code_align = ml_cfi_uleb(&entry);
	cie->data_align = ml_cfi_sleb(&entry);
	cie->return_register = version == 1 ? ml_cfi_number(&entry, 1) : ml_cfi_uleb(&entry);
	if (cie->has_augmentation_data) {
		data = ml_cfi_take(&entry, ml_cfi_uleb(&entry));
		read_augmentation(&data, letters + 1, cie);
		entry.is_overrun |= data.is_overrun;
	}
	cie->program = ml_cfi_address(&entry);
	cie->end = cie->program + (ml_u64)(entry.end - entry.at);
	return result_of(&entry);
}

enum ml_cfi_found ml_cfi_read_fde(struct ml_remote_memory *memory, ml_u32 pid, ml_u64 address, struct ml_fde *fde)
{
	struct ml_cfi_bytes entry;
	ml_u64 bytes;
	ml_u32 id;
	enum ml_cfi_found found = open_entry(memory, pid, address, &id, &entry);

	if (found == ML_CFI_FOUND)
		found = id ? read_cie(memory, pid, address + 4 - id, &fde->cie) : ML_CFI_ABSENT;
	if (found == ML_CFI_FOUND) /* again: the CIE has taken its room */
		found = open_entry(memory, pid, address, &id, &entry);
	if (found != ML_CFI_FOUND)
		return found;
	fde->start = ml_cfi_pointer(&entry, fde->cie.pointer_encoding);
	bytes = ml_cfi_pointer(&entry, fde->cie.pointer_encoding & 0x0f);
	fde->limit = fde->start + bytes;
	if (fde->cie.has_augmentation_data)
		ml_cfi_take(&entry, ml_cfi_uleb(&entry));
	fde->program = ml_cfi_address(&entry);
	fde->end = fde->program + (ml_u64)(entry.end - entry.at);
	entry.is_overrun |= fde->limit < fde->start;
	return result_of(&entry);
}

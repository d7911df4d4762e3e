// SPDX-License-Identifier: Apache-2.0
#include "cfi.h"

#include <elf.h>
#include <string.h>

#define SEGMENTS_MAX 64
#define HEAD_MAX 20u /* 4 bytes and two pointers */
#define HEADER_TABLE_ENCODING 0x3b /* DW_EH_PE_datarel | DW_EH_PE_sdata4: the only one that linkers write */

/* Facts from the program headers. */
struct segments {
	ml_u64 bias; /* address - vaddr */
	ml_u64 eh_frame_header;
	ml_u64 eh_frame_header_bytes;
	ml_u8 is_loaded;  /* the header is in a segment: bias is known */
	ml_u8 has_code;   /* at the pc that is asked for */
};

static void add_segment(struct segments *segments, const Elf64_Phdr *segment, ml_u64 elf_address, ml_u64 pc)
{
	ml_u64 vaddr = segment->p_vaddr;

	/* segments are in order of their vaddrs: the first one loads the file's first page */
	if (segment->p_type == PT_LOAD && !segments->is_loaded && segment->p_offset < ML_REMOTE_PAGE_BYTES) {
		segments->bias = elf_address - (vaddr - segment->p_offset);
		segments->is_loaded = 1;
	}
	if (segment->p_type == PT_LOAD && segment->p_flags & PF_X && segments->is_loaded &&
	    pc - (vaddr + segments->bias) < segment->p_memsz)
		segments->has_code = 1;
	if (segment->p_type == PT_GNU_EH_FRAME) {
		segments->eh_frame_header = vaddr;
		segments->eh_frame_header_bytes = segment->p_memsz;
	}
}

static enum ml_cfi_found read_segments(struct ml_remote_memory *memory, ml_u32 pid, const struct ml_cfi_arch *arch,
				       ml_u64 elf_address, ml_u64 pc, struct segments *segments)
{
	Elf64_Ehdr header;
	Elf64_Phdr segment;

	if (ml_remote_memory_read(memory, pid, elf_address, &header, sizeof(header)))
		return ML_CFI_UNREADABLE;
	if (memcmp(header.e_ident, ELFMAG, SELFMAG) || header.e_ident[EI_CLASS] != ELFCLASS64 ||
	    header.e_machine != arch->elf_machine || header.e_phentsize != sizeof(segment) || header.e_phnum > SEGMENTS_MAX)
		return ML_CFI_ABSENT;
	for (int i = 0; i < header.e_phnum; i++) {
		if (ml_remote_memory_read(memory, pid, elf_address + header.e_phoff + i * sizeof(segment), &segment,
					  sizeof(segment)))
			return ML_CFI_UNREADABLE;
		add_segment(segments, &segment, elf_address, pc);
	}
	return segments->has_code && segments->eh_frame_header_bytes ? ML_CFI_FOUND : ML_CFI_ABSENT;
}

enum ml_cfi_found ml_eh_frame_open(struct ml_remote_memory *memory, ml_u32 pid, const struct ml_cfi_arch *arch,
				   ml_u64 elf_address, ml_u64 pc, struct ml_eh_frame *eh_frame)
{
	struct segments segments = { 0 };
	struct ml_cfi_bytes header;
	ml_u64 bytes, room;
	ml_u32 head; /* version, encodings of the pointer to .eh_frame, of the count and of the table */
	enum ml_cfi_found found = read_segments(memory, pid, arch, elf_address, pc, &segments);

	if (found != ML_CFI_FOUND)
		return found;
	eh_frame->header = segments.eh_frame_header + segments.bias;
	bytes = segments.eh_frame_header_bytes;
	if (ml_remote_memory_open(memory, pid, eh_frame->header, eh_frame->header + (bytes < HEAD_MAX ? bytes : HEAD_MAX),
				  &header))
		return ML_CFI_UNREADABLE;
	head = (ml_u32)ml_cfi_number(&header, 4);
	if ((head & 0xff) != 1 || head >> 24 != HEADER_TABLE_ENCODING || (head >> 16 & 0xff) == ML_DW_EH_PE_OMIT)
		return ML_CFI_ABSENT;
	if ((head >> 8 & 0xff) != ML_DW_EH_PE_OMIT)
		ml_cfi_pointer(&header, head >> 8 & 0xff & ~ML_DW_EH_PE_INDIRECT);
	eh_frame->count = ml_cfi_pointer(&header, head >> 16 & 0xff & ~ML_DW_EH_PE_INDIRECT);
	eh_frame->table = ml_cfi_address(&header);
	room = (eh_frame->header + bytes - eh_frame->table) / 8;
	if (eh_frame->count > room)
		eh_frame->count = room;
	return header.is_overrun || !eh_frame->count ? ML_CFI_ABSENT : ML_CFI_FOUND;
}

static int read_pair(struct ml_remote_memory *memory, ml_u32 pid, const struct ml_eh_frame *eh_frame, ml_u64 i, ml_s32 pair[2])
{
	return ml_remote_memory_read(memory, pid, eh_frame->table + 8 * i, pair, 8);
}

static ml_u64 address_of(const struct ml_eh_frame *eh_frame, ml_s32 distance)
{
	return eh_frame->header + (ml_u64)(__INT64_TYPE__)distance;
}

enum ml_cfi_found ml_eh_frame_find(struct ml_remote_memory *memory, ml_u32 pid, const struct ml_eh_frame *eh_frame, ml_u64 pc,
				   struct ml_fde *fde)
{
	ml_u64 low = 0, high = eh_frame->count; /* first entry that begins behind the pc */
	ml_s32 pair[2];
	enum ml_cfi_found found;

	while (low < high) {
		ml_u64 middle = low + (high - low) / 2;

		if (read_pair(memory, pid, eh_frame, middle, pair))
			return ML_CFI_UNREADABLE;
		if (address_of(eh_frame, pair[0]) <= pc)
			low = middle + 1;
		else
			high = middle;
	}
	if (!low)
		return ML_CFI_ABSENT;
	if (read_pair(memory, pid, eh_frame, low - 1, pair))
		return ML_CFI_UNREADABLE;
	found = ml_cfi_read_fde(memory, pid, address_of(eh_frame, pair[1]), fde);
	if (found == ML_CFI_FOUND && pc - fde->start >= fde->limit - fde->start)
		return ML_CFI_ABSENT;
	return found;
}

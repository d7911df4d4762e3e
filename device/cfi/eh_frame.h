/* SPDX-License-Identifier: Apache-2.0 */
/* .eh_frame_hdr of a loaded ELF file: from a pc to its FDE (LSB 5.0 §10.6.2), all read from the process's memory. */
#ifndef MEMLEAK_EH_FRAME_H
#define MEMLEAK_EH_FRAME_H

#include "cfi.h"

/* Its sorted table: pairs of a function's start and its FDE, each a signed 32-bit distance from `header`. */
struct ml_eh_frame {
	ml_u64 header;
	ml_u64 table;
	ml_u64 count;
};

/*
 * The table of the ELF file whose header lies at this address, if it has code at this pc.
 * ABSENT: no such file there, or none with a table that can be searched.
 */
enum ml_cfi_found ml_eh_frame_open(struct ml_remote_memory *memory, ml_u32 pid, const struct ml_cfi_arch *arch,
				   ml_u64 elf_address, ml_u64 pc, struct ml_eh_frame *eh_frame);

/* The FDE of a pc. */
enum ml_cfi_found ml_eh_frame_find(struct ml_remote_memory *memory, ml_u32 pid, const struct ml_eh_frame *eh_frame,
				   ml_u64 pc, struct ml_fde *fde);

#endif

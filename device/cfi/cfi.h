/* SPDX-License-Identifier: Apache-2.0 */
/* Call frame information (DWARF 5 §6.4, LSB 5.0 §10.6): what it says at one pc, as a rule for the tracers' walk. */
#pragma once

#include "frame_rule.h"
#include "remote_memory.h"
#include "signature.h"

#define ML_CFI_PROGRAM_BYTES_MAX (64u << 10) /* of one CIE or FDE; the largest FDE of libLLVM has about 4 KiB */

/* Properties of an architecture: DWARF numbers of registers, and slots in the record's registers[] (wire.h). */
struct ml_cfi_arch {
	ml_u16 elf_machine;
	ml_u8 sp, fp, return_address;
	ml_u8 sp_slot, fp_slot, pc_slot;
	ml_u8 link_slot;       /* of the register that a call leaves its return address in; 0: it pushes it */
	ml_u64 signature_mask; /* signature.h */
};

extern const struct ml_cfi_arch ml_cfi_x86_64;
extern const struct ml_cfi_arch ml_cfi_arm64;

/* That of this program, NULL where the rules' shapes do not fit (32-bit). */
const struct ml_cfi_arch *ml_cfi_native(void);

enum ml_cfi_found {
	ML_CFI_UNREADABLE = -1, /* the memory cannot be read now: nothing is known */
	ML_CFI_ABSENT = 0,      /* there is none, or it is malformed */
	ML_CFI_FOUND = 1,
};

/* A common information entry: what several FDEs share. */
struct ml_cie {
	ml_u64 program, end; /* addresses of the initial instructions */
	ml_u64 code_align;
	ml_s64 data_align;
	ml_u64 return_register; /* DWARF number */
	ml_u8 pointer_encoding; /* DW_EH_PE_* */
	ml_u8 has_augmentation_data;
	ml_u8 is_signal_frame;
};

/* A frame description entry: the CFI of the code in [start, limit). */
struct ml_fde {
	struct ml_cie cie;
	ml_u64 start, limit;
	ml_u64 program, end;
};

/* The FDE at an address, and its CIE. */
enum ml_cfi_found ml_cfi_read_fde(struct ml_remote_memory *memory, ml_u32 pid, ml_u64 address, struct ml_fde *fde);

/*
 * cfa, fp_words and ra_words of the rule at a pc of this FDE; ML_FRAME_NONE where CFI says what a rule cannot.
 * Returns FOUND or UNREADABLE.
 */
enum ml_cfi_found ml_cfi_rule(struct ml_remote_memory *memory, ml_u32 pid, const struct ml_cfi_arch *arch,
			      const struct ml_fde *fde, ml_u64 pc, struct ml_frame_rule *rule);

/*
 * The sorted table of .eh_frame_hdr of a loaded ELF file (LSB 5.0 §10.6.2): pairs of a function's start and its FDE, each
 * a signed 32-bit distance from `header`.
 */
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
enum ml_cfi_found ml_eh_frame_find(struct ml_remote_memory *memory, ml_u32 pid, const struct ml_eh_frame *eh_frame, ml_u64 pc,
				   struct ml_fde *fde);

/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wire.h"

#define ML_ELF_SEGMENTS_MAX 64

struct ml_elf_segment {
	ml_u64 offset, vaddr, file_bytes, memory_bytes;
};

struct ml_elf_segments {
	bool is_64_bit, has_interpreter;
	int n_loaded;
	struct ml_elf_segment loaded[ML_ELF_SEGMENTS_MAX]; /* PT_LOAD */
};

/* Reads the program headers of an ELF file of either class, whose header is at `base` of an open file. 0, or -1: there is none. */
int ml_elf_segments_read(struct ml_elf_segments *elf, int file, ml_u64 base);

/*
 * `memleakd image PID ADDRESS INODE`: writes the ELF file of that inode mapped at ADDRESS (hexadecimal) to standard output,
 * from the process's memory: for files that cannot be opened. Bytes keep their file offsets. Unloaded parts (sections,
 * debugging information) are missing, and the header has no sections. Modified parts (relocated data) are
 * as they are in memory. Exit code: 0, or 4 after a line on standard error.
 */
int ml_process_image_print(int pid, const char *address, const char *inode);

/* The bytes of this kernel's vdso, which every process of the same architecture has; nothing if there is none. */
int ml_vdso_print(void);

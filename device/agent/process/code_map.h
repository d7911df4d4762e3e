/* SPDX-License-Identifier: Apache-2.0 */
/* The mappings of some processes, and the unwind tables of the ELF files in them, read when asked for and kept. */
#ifndef MEMLEAK_CODE_MAP_H
#define MEMLEAK_CODE_MAP_H

#include "cfi/eh_frame.h"

#define ML_CODE_MAP_PROCESSES 8
#define ML_CODE_MAP_MODULES 64
#define ML_CODE_MAP_MAPPINGS_MAX 65536 /* of one process; the kernel's default limit is 65530 */

struct ml_code_mapping {
	ml_u64 start, end;
	ml_u8 is_readable, is_code;
};

struct ml_code_module { /* of the code mapping that begins at `start` */
	ml_u64 start; /* 0 = empty */
	enum ml_cfi_found found;
	struct ml_eh_frame eh_frame;
};

struct ml_code_process {
	ml_u32 pid; /* 0 = empty */
	ml_u32 n_mappings;
	ml_u64 image; /* that the rest is true for (frame_rule.h) */
	ml_u64 used;  /* when, by ml_code_map.now */
	ml_u64 read_ns;
	struct ml_code_mapping *mappings;
	struct ml_code_module modules[ML_CODE_MAP_MODULES]; /* by a hash of start */
};

struct ml_code_map {
	ml_u64 now; /* counts the uses */
	struct ml_remote_memory memory;
	struct ml_code_process processes[ML_CODE_MAP_PROCESSES];
};

/* The process under this image; data of another image is dropped. */
struct ml_code_process *ml_code_map_process(struct ml_code_map *map, ml_u32 pid, ml_u64 image);

/*
 * The FDE of a pc. FOUND; ABSENT: the ELF file there has none; UNREADABLE: nothing can be said now.
 * *is_file: an ELF file was found there, and what was found or not found is as lasting as its mapping.
 */
enum ml_cfi_found ml_code_map_find(struct ml_code_map *map, struct ml_code_process *process,
				   const struct ml_cfi_arch *arch, ml_u64 pc, struct ml_fde *fde, int *is_file);

void ml_code_map_forget(struct ml_code_map *map, ml_u32 pid);

/* Frees all processes. */
void ml_code_map_clear(struct ml_code_map *map);

#endif

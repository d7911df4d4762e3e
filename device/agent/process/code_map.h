/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings of some processes and unwind tables of their ELF files, read on demand and cached. */
#pragma once

#include "cfi/cfi.h"

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
	ml_u64 image; /* for which the rest is valid (frame_rule.h) */
	ml_u64 used;  /* the time of the last use, by ml_code_map.now */
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
 * The FDE of a pc. FOUND; ABSENT: the ELF file there has none; UNREADABLE: unknown now. *is_file: an ELF file is there, so
 * that the result is valid as long as its mapping.
 */
enum ml_cfi_found ml_code_map_find(struct ml_code_map *map, struct ml_code_process *process, const struct ml_cfi_arch *arch,
				   ml_u64 pc, struct ml_fde *fde, int *is_file);

/* Frees what is cached of a process; 0: of all. */
void ml_code_map_forget(struct ml_code_map *map, ml_u32 pid);

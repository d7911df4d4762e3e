/* SPDX-License-Identifier: Apache-2.0 */
/* Code of a process held against its file's. */
#ifndef MEMLEAK_CODE_BYTES_H
#define MEMLEAK_CODE_BYTES_H

#include <stdbool.h>
#include <stddef.h>

#include "wire.h"

#if defined(__aarch64__)
#define ML_CODE_STEP 4 /* bytes of the shortest instruction */
#else
#define ML_CODE_STEP 1
#endif

/* The same but for breakpoints: int3 (x86), brk (Arm ARM C6.2.45). Uprobes are such. n: a multiple of ML_CODE_STEP. */
bool ml_code_bytes_agree(const ml_u8 *there, const ml_u8 *in_file, size_t n);

#endif

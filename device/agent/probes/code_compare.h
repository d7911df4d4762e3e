/* SPDX-License-Identifier: Apache-2.0 */
/* Compares code in a process with its file. */
#ifndef MEMLEAK_CODE_COMPARE_H
#define MEMLEAK_CODE_COMPARE_H

#include <stdbool.h>
#include <stddef.h>

#include "wire.h"

#if defined(__aarch64__)
#define ML_CODE_STEP 4 /* bytes of the shortest instruction */
#else
#define ML_CODE_STEP 1
#endif

/*
 * Whether the code is the same except for breakpoints, such as those of uprobes: int3 (x86), brk (Arm ARM C6.2.45).
 * n: a multiple of ML_CODE_STEP.
 */
bool ml_code_agrees(const ml_u8 *there, const ml_u8 *in_file, size_t n);

#endif

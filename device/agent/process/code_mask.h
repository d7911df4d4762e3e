/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_CODE_MASK_H
#define MEMLEAK_CODE_MASK_H

#include <sys/auxv.h>

#include "wire.h"

/*
 * What of a saved return address is an address. On arm64 a signature (Armv8.3 PAuth) begins where user addresses end, and that
 * is the kernel's choice: 39 bits on Android's, 47 with pages of 16 KiB, 48 (arm64 Documentation/pointer-authentication.rst).
 * The first thread's stack, where the kernel puts the program's name, lies at their end.
 */
static inline ml_u64 ml_code_mask(void)
{
#if defined(__aarch64__)
	ml_u64 top = getauxval(AT_EXECFN);

	return top ? ~0ull >> __builtin_clzll(top) : (1ull << 48) - 1;
#else
	return ~0ull;
#endif
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <sys/auxv.h>

#include "signature.h"

/*
 * The signature mask of this kernel's processes. On arm64 a signature begins where user addresses end: at 39 bits on
 * Android, 47 with pages of 16 KiB, 48 (arm64 Documentation/pointer-authentication.rst). The program's name in the first
 * thread's stack lies at their end.
 */
static inline ml_u64 ml_signature_mask(void)
{
#if defined(__aarch64__)
	ml_u64 top = getauxval(AT_EXECFN);

	return top ? ~(~0ull >> __builtin_clzll(top)) : ~0ull << 48;
#else
	return 0;
#endif
}

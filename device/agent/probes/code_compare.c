// SPDX-License-Identifier: Apache-2.0
#include "agent/probes/code_compare.h"

#include <string.h>

#if defined(__aarch64__)
static bool is_breakpoint(const ml_u8 *there)
{
	ml_u32 word;

	memcpy(&word, there, sizeof(word));
	return (word & 0xffe0001f) == 0xd4200000;
}
#else
static bool is_breakpoint(const ml_u8 *there)
{
	return *there == 0xcc;
}
#endif

bool ml_code_agrees(const ml_u8 *there, const ml_u8 *in_file, size_t n)
{
	for (size_t i = 0; i + ML_CODE_STEP <= n; i += ML_CODE_STEP)
		if (memcmp(there + i, in_file + i, ML_CODE_STEP) && !is_breakpoint(there + i))
			return false;
	return true;
}

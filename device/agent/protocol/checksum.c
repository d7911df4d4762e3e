// SPDX-License-Identifier: Apache-2.0
#include "agent/protocol/checksum.h"

#include <zlib.h>

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

/*
 * Four 16-byte lanes are folded over the data by carry-less products with x^n mod P (bit-reflected), then into one lane. Its 16 bytes
 * have the remainder of all bytes before them, so zlib finishes with them instead. (V. Gopal et al., "Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ", Intel 2009.)
 */
#define FOLD_BYTES 64u
#define X_544 0x154442bd4 /* x^(512+32) and x^(512-32): over four lanes */
#define X_480 0x1c6e41596
#define X_160 0x1751997d0 /* x^(128+32) and x^(128-32): over one */
#define X_96 0x0ccaa009e

__attribute__((target("sse4.1,pclmul"))) static inline __m128i fold(__m128i lane, __m128i by, __m128i next)
{
	__m128i low = _mm_clmulepi64_si128(lane, by, 0x00), high = _mm_clmulepi64_si128(lane, by, 0x11);

	return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target("sse4.1,pclmul"))) static ml_u32 fold_all(ml_u32 crc, const unsigned char *bytes, size_t n)
{
	const __m128i over_four = _mm_set_epi64x(X_480, X_544), over_one = _mm_set_epi64x(X_96, X_160);
	const __m128i *from = (const __m128i *)(const void *)bytes;
	__m128i lanes[4], last;

	for (int i = 0; i < 4; i++)
		lanes[i] = _mm_loadu_si128(from + i);
	lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)~crc));
	for (from += 4, n -= FOLD_BYTES; n >= FOLD_BYTES; from += 4, n -= FOLD_BYTES)
		for (int i = 0; i < 4; i++)
			lanes[i] = fold(lanes[i], over_four, _mm_loadu_si128(from + i));
	last = lanes[0];
	for (int i = 1; i < 4; i++)
		last = fold(last, over_one, lanes[i]);
	/* crc32(~0) undoes zlib's own start value: the remainder is in the lane already. */
	crc = (ml_u32)crc32(~0u, (const Bytef *)&last, sizeof(last));
	return (ml_u32)crc32(crc, (const Bytef *)from, (uInt)n);
}

static int has_carryless_product(void)
{
	unsigned int a, b, c = 0, d;

	return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_PCLMUL) && (c & bit_SSE4_1);
}

ml_u32 ml_checksum(ml_u32 crc, const void *bytes, size_t n)
{
	static int known = -1;

	if (known < 0)
		known = has_carryless_product();
	return known && n >= FOLD_BYTES ? fold_all(crc, bytes, n) : (ml_u32)crc32(crc, bytes, (uInt)n);
}

#else

ml_u32 ml_checksum(ml_u32 crc, const void *bytes, size_t n)
{
	return (ml_u32)crc32(crc, bytes, (uInt)n);
}

#endif

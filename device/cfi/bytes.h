/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of DWARF in a span of bytes (DWARF 5 §7.6, LSB 5.0 §10.5.1). All are little-endian. */
#pragma once

#include "wire.h"

typedef __INT64_TYPE__ ml_s64;

#define ML_DW_EH_PE_PCREL 0x10
#define ML_DW_EH_PE_INDIRECT 0x80
#define ML_DW_EH_PE_OMIT 0xff

/*
 * The bytes from `at` to `end`, copied from other memory. A number that reaches past the end is 0, sets a flag and ends
 * the span. Check the flags before using the values.
 */
struct ml_cfi_bytes {
	const ml_u8 *at, *end;
	ml_u64 distance; /* add it to `at` for the byte's address in that memory */
	ml_u32 is_overrun;
	ml_u32 is_long; /* a LEB128 had more than four bytes, which compilers write for large or negative numbers only */
};

static inline ml_u64 ml_cfi_address(const struct ml_cfi_bytes *bytes)
{
	return bytes->distance + (ml_u64)(__UINTPTR_TYPE__)bytes->at;
}

static inline ml_u64 ml_cfi_overrun(struct ml_cfi_bytes *bytes)
{
	bytes->is_overrun = 1;
	bytes->at = bytes->end;
	return 0;
}

/* Takes n bytes as a span of their own. */
static inline struct ml_cfi_bytes ml_cfi_take(struct ml_cfi_bytes *bytes, ml_u64 n)
{
	struct ml_cfi_bytes taken = { .at = bytes->at, .end = bytes->at, .distance = bytes->distance };

	if (n > (ml_u64)(bytes->end - bytes->at))
		ml_cfi_overrun(bytes);
	else
		taken.end = bytes->at += n;
	return taken;
}

/* A number of 1, 2, 4 or 8 bytes. */
static inline ml_u64 ml_cfi_number(struct ml_cfi_bytes *bytes, ml_u32 n)
{
	ml_u64 value = 0;

	if (n > (ml_u64)(bytes->end - bytes->at))
		return ml_cfi_overrun(bytes);
	for (ml_u32 i = 0; i < n; i++)
		value |= (ml_u64)*bytes->at++ << 8 * i;
	return value;
}

/* sign: 0x40 extends the sign. A LEB128 of more than 64 bits is an overrun. */
static inline ml_u64 ml_cfi_leb128(struct ml_cfi_bytes *bytes, ml_u8 sign)
{
	ml_u64 value = 0;

	if (bytes->at < bytes->end && *bytes->at < 0x40) /* as nearly all */
		return *bytes->at++;
	for (ml_u32 bits = 0; bits < 64 && bytes->at < bytes->end;) {
		ml_u8 byte = *bytes->at++;

		value |= (ml_u64)(byte & 0x7f) << bits;
		bits += 7;
		if (byte & 0x80)
			continue;
		bytes->is_long |= bits > 28;
		return byte & sign && bits < 64 ? value | ~0ull << bits : value;
	}
	return ml_cfi_overrun(bytes);
}

static inline ml_u64 ml_cfi_uleb(struct ml_cfi_bytes *bytes)
{
	return ml_cfi_leb128(bytes, 0);
}

static inline ml_s64 ml_cfi_sleb(struct ml_cfi_bytes *bytes)
{
	return (ml_s64)ml_cfi_leb128(bytes, 0x40);
}

/*
 * A pointer in one of the encodings that linkers and compilers write in CFI: absolute or relative to itself, of 2, 4 or
 * 8 bytes. Another one is an overrun.
 */
static inline ml_u64 ml_cfi_pointer(struct ml_cfi_bytes *bytes, ml_u8 encoding)
{
	/* DW_EH_PE_absptr, udata2, udata4, udata8, signed, sdata2, sdata4, sdata8; 0 = not supported */
	static const ml_u8 bytes_of_format[16] = { 8, 0, 2, 4, 8, 0, 0, 0, 8, 0, 2, 4, 8 };
	ml_u8 n = bytes_of_format[encoding & 0xf], application = encoding & 0xf0;
	ml_u64 field_address = ml_cfi_address(bytes), value;

	if (!n || (application && application != ML_DW_EH_PE_PCREL))
		return ml_cfi_overrun(bytes);
	value = ml_cfi_number(bytes, n);
	if (encoding & 0x8 && n < 8 && value >> (8 * n - 1))
		value |= ~0ull << 8 * n;
	return application ? value + field_address : value;
}

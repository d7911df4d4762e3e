// SPDX-License-Identifier: Apache-2.0
#include "preload/freestanding/bytes.h"

typedef ml_u64 chunk __attribute__((vector_size(16), aligned(1), may_alias));

void ml_copy(void *to, const void *from, size_t bytes)
{
	unsigned char *out = to;
	const unsigned char *in = from;

	for (; bytes >= 64; bytes -= 64, in += 64, out += 64) {
		chunk a = *(const chunk *)in, b = *(const chunk *)(in + 16);
		chunk c = *(const chunk *)(in + 32), d = *(const chunk *)(in + 48);

		*(chunk *)out = a;
		*(chunk *)(out + 16) = b;
		*(chunk *)(out + 32) = c;
		*(chunk *)(out + 48) = d;
	}
	for (; bytes; bytes--)
		*out++ = *in++;
}

void ml_fill(void *to, int byte, size_t bytes)
{
	unsigned char *out = to;

	while (bytes--)
		*out++ = (unsigned char)byte;
}

size_t ml_length(const char *text)
{
	size_t length = 0;

	while (text[length])
		length++;
	return length;
}

int ml_starts_with(const char *text, const char *prefix)
{
	while (*prefix)
		if (*text++ != *prefix++)
			return 0;
	return 1;
}

int ml_is_same_text(const char *text, const char *other)
{
	while (*text && *text == *other) {
		text++;
		other++;
	}
	return *text == *other;
}

const char *ml_file_name(const char *path)
{
	const char *name = path;

	for (const char *c = path; *c; c++)
		if (*c == '/')
			name = c + 1;
	return name;
}

/* FNV-1a */
ml_u64 ml_hash_text(const char *text, size_t length)
{
	ml_u64 hash = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3ull;
	return hash;
}

ml_u64 ml_parse_hex(const char **text, const char *end)
{
	ml_u64 value = 0;

	for (; *text < end; ++*text) {
		char c = **text;

		if (c >= '0' && c <= '9')
			value = value << 4 | (ml_u64)(c - '0');
		else if (c >= 'a' && c <= 'f')
			value = value << 4 | (ml_u64)(c - 'a' + 10);
		else
			break;
	}
	return value;
}

/* Compilers may call these for structure copies even in freestanding code; memcmp is for the agent's sources. */
__attribute__((visibility("hidden"))) void *memcpy(void *to, const void *from, size_t bytes)
{
	ml_copy(to, from, bytes);
	return to;
}

__attribute__((visibility("hidden"))) void *memset(void *to, int byte, size_t bytes)
{
	ml_fill(to, byte, bytes);
	return to;
}

__attribute__((visibility("hidden"))) int memcmp(const void *one, const void *other, size_t bytes)
{
	const unsigned char *a = one, *b = other;

	for (; bytes; bytes--, a++, b++)
		if (*a != *b)
			return *a - *b;
	return 0;
}

#if defined(__arm__)
/* Named by unwinding tables as their reader (EHABI §7.3); every unwinder has its own. */
__attribute__((visibility("hidden"))) void __aeabi_unwind_cpp_pr0(void)
{
}

__attribute__((visibility("hidden"))) void __aeabi_unwind_cpp_pr1(void)
{
}
#endif

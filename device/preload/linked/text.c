// SPDX-License-Identifier: Apache-2.0
#include "preload/linked/text.h"

#include "preload/freestanding/bytes.h"

static const char digits[] = "0123456789abcdef";

static void add_bytes(struct ml_text *text, const char *bytes, size_t n)
{
	if (text->room - text->fill < n)
		return;
	ml_copy(text->bytes + text->fill, bytes, n);
	text->fill += n;
}

void ml_text_add(struct ml_text *text, const char *words)
{
	add_bytes(text, words, ml_length(words));
}

ml_u64 ml_text_divide(ml_u64 number, ml_u64 by, ml_u64 *rest)
{
	ml_u64 quotient = 0, left = 0;

	for (int bit = 63; bit >= 0; bit--) {
		left = left << 1 | (number >> bit & 1);
		quotient = quotient << 1 | (left >= by);
		left -= left >= by ? by : 0;
	}
	*rest = left;
	return quotient;
}

void ml_text_add_number(struct ml_text *text, ml_u64 number)
{
	char decimal[20];
	size_t at = sizeof(decimal);
	ml_u64 digit;

	do {
		number = ml_text_divide(number, 10, &digit);
		decimal[--at] = digits[digit];
	} while (number);
	add_bytes(text, decimal + at, sizeof(decimal) - at);
}

void ml_text_add_hex_byte(struct ml_text *text, unsigned char byte)
{
	add_bytes(text, (char[]){ digits[byte >> 4], digits[byte & 15] }, 2);
}

void ml_text_add_quoted(struct ml_text *text, const char *bytes, size_t n)
{
	ml_text_add(text, "\"");
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)bytes[i];
		char escaped[6] = { '\\', 'u', '0', '0', digits[c >> 4], digits[c & 15] };

		if (c < 32 || c == '"' || c == '\\' || c == 127)
			add_bytes(text, escaped, sizeof(escaped));
		else
			add_bytes(text, bytes + i, 1);
	}
	ml_text_add(text, "\"");
}

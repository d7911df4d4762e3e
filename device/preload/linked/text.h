/* SPDX-License-Identifier: Apache-2.0 */
/* Text for the blocks of a recording, in the caller's memory. A piece that does not fit is left out as a whole. */
#pragma once

#include "wire.h"

struct ml_text {
	char *bytes;
	size_t fill, room;
};

void ml_text_add(struct ml_text *text, const char *words);
/* number / by, and the rest. 32-bit arm would need a function of the compiler's library for it. */
ml_u64 ml_text_divide(ml_u64 number, ml_u64 by, ml_u64 *rest);

void ml_text_add_number(struct ml_text *text, ml_u64 number);
void ml_text_add_hex_byte(struct ml_text *text, unsigned char byte);

/* As a JSON string (RFC 8259 §7); bytes above ASCII are copied. */
void ml_text_add_quoted(struct ml_text *text, const char *bytes, size_t n);

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and text without a libc. The names keep compilers from turning them into builtins. */
#pragma once

#include "wire.h"

void ml_copy(void *to, const void *from, size_t bytes);
void ml_fill(void *to, int byte, size_t bytes);
size_t ml_length(const char *text);
int ml_starts_with(const char *text, const char *prefix);
int ml_is_same_text(const char *text, const char *other);
const char *ml_file_name(const char *path); /* without folders */
ml_u64 ml_hash_text(const char *text, size_t length);

/* Parses hexadecimal digits from *text up to `end` at most, and moves *text behind them. */
ml_u64 ml_parse_hex(const char **text, const char *end);

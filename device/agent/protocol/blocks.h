/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's standard output: blocks of wire.h, each with its checksum. */
#ifndef MEMLEAK_BLOCKS_H
#define MEMLEAK_BLOCKS_H

#include <stddef.h>
#include <sys/uio.h>

#include "wire.h"

/* All return 0, or -1 when the host is gone (nothing more need be written then). */
int ml_blocks_write(enum ml_block_kind kind, const void *payload, size_t payload_bytes);

/* The payload in up to 12 pieces; zero bytes are added up to a multiple of 8. */
int ml_blocks_writev(enum ml_block_kind kind, const struct iovec *parts, int n_parts);

int ml_blocks_hello(enum ml_collector collector, int pid);
int ml_blocks_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What the user may not have thought of, in a session without `follow`. */
void ml_blocks_log_children(ml_u64 n_children);

/* The text is one line: what failed, with which datum (way out). */
int ml_blocks_error(enum ml_reason reason, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

int ml_blocks_end(enum ml_reason reason, int wait_status);

ml_u64 ml_clock_ns(void);

#endif

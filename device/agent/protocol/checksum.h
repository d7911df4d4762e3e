/* SPDX-License-Identifier: Apache-2.0 */
/* The CRC-32 of the wire format (the one of zlib and Ethernet), by the processor's own means where it has them. */
#ifndef MEMLEAK_CHECKSUM_H
#define MEMLEAK_CHECKSUM_H

#include <stddef.h>

#include "wire.h"

/* Goes on from `crc`, 0 at first. */
ml_u32 ml_checksum(ml_u32 crc, const void *bytes, size_t n);

#endif

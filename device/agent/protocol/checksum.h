/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32 of the wire format (zlib's), by carry-less products if the processor has them. */
#pragma once

#include <stddef.h>

#include "wire.h"

/* Continues from `crc`; 0 at first. */
ml_u32 ml_checksum(ml_u32 crc, const void *bytes, size_t n);

/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/* Signed return addresses (Armv8.3 PAuth). signature_mask: the bits above a user's address, which may hold a PAC. */
#pragma once

#include "wire.h"

static inline __attribute__((always_inline)) ml_u64 ml_strip_signature(ml_u64 address, ml_u64 signature_mask)
{
	return address & ~signature_mask;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a record of evidence, as a target wrote it, lies within its bounds. */
#ifndef MEMLEAK_EVIDENCE_BOUNDS_H
#define MEMLEAK_EVIDENCE_BOUNDS_H

#include <stdbool.h>

#include "wire.h"

/* Everything that the record says is within `bytes`; its registers, stack, chain and words above the slice may be read. */
bool ml_evidence_is_sound(const struct ml_evidence *record, ml_u64 bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Evidence whose stack is a few words (ML_EVIDENCE_STACK_SPARSE), as a target sent it. */
#ifndef MEMLEAK_SPARSE_STACK_H
#define MEMLEAK_SPARSE_STACK_H

#include <stdbool.h>

#include "wire.h"

/* Whether the record, of which so many bytes are there, is of that kind and within its bounds. */
bool ml_sparse_stack_is_sound(const struct ml_evidence *record, ml_u64 bytes);

#endif

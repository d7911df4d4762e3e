/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that evidence written by a target lies within its bounds. */
#pragma once

#include "wire.h"

/* Whether all parts lie within `bytes`: then registers, stack, chain, words above the slice and frames in Python may be read. */
bool ml_evidence_is_sound(const struct ml_evidence *record, ml_u64 bytes);

/* Whether the words of a stack with ML_EVIDENCE_STACK_SPARSE lie within `bytes`. */
bool ml_sparse_stack_is_sound(const struct ml_evidence *record, ml_u64 bytes);

/* SPDX-License-Identifier: Apache-2.0 */
/* Evidence whose stack is a few words (ML_EVIDENCE_STACK_SPARSE): how the shim sends it, and how it gets its slice back. */
#ifndef MEMLEAK_SPARSE_STACK_H
#define MEMLEAK_SPARSE_STACK_H

#include <stdbool.h>

#include "../preload/segment.h"

/* Whether the record, of which so many bytes are there, is of that kind and within its bounds. */
bool ml_sparse_stack_is_sound(const struct ml_evidence *record, ml_u64 bytes);

/* Of the record with a whole slice; what it has in its stead is 0 where nothing was sent. */
ml_u32 ml_sparse_stack_whole_bytes(const struct ml_evidence *record);
void ml_sparse_stack_make_whole(const struct ml_evidence *record, void *to);

#endif

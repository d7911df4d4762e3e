/* SPDX-License-Identifier: Apache-2.0 */
/* Counters by stack key. Lock-free; entries are dense and permanent. */
#pragma once

#include "preload/segment/segment.h"

/* Index of the key's entry, which is made if there is none; 0 if there is no room. */
ml_u32 ml_keys_find(const struct ml_view *view, ml_u64 key);

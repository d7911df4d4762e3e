/* SPDX-License-Identifier: Apache-2.0 */
/* Counters by stack key. Lock free; entries are dense and never go away. */
#pragma once

#include "preload/segment/segment.h"

/* The number of the key's entry, made when there is none; 0 when there is no room for it. */
ml_u32 ml_keys_find(const struct ml_view *view, ml_u64 key);

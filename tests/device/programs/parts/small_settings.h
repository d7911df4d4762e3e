/* SPDX-License-Identifier: Apache-2.0 */
/* Those of a segment that is small enough to be made thousands of times. */
#include "preload/segment/segment.h"

static const struct ml_settings settings = { .max_live = 1024,
					     .stack_bytes = 4096,
					     .key_bytes = 4096,
					     .n_threads = 4,
					     .n_keys = 16,
					     .ring_bytes = 1u << 16,
					     .n_chunks = 2 };

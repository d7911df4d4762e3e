/* SPDX-License-Identifier: Apache-2.0 */
/* Stores into slots on pages that may be read-only, and restores the protection of each page. */
#pragma once

#include "preload/freestanding/mappings.h"

struct ml_hook_pages {
	const struct ml_mappings *maps;
	unsigned long open; /* the page that was made writable */
	unsigned long bytes; /* 0 = none */
	unsigned int protection; /* the page's own */
	int n_unrestored; /* pages that could not be made read-only again */
};

/*
 * Atomically stores `value` if the slot holds `expected`. Returns 1 if it holds another value, -errno if the page must
 * not be written to: shared memory or code.
 */
int ml_hook_pages_store(struct ml_hook_pages *pages, unsigned long slot, unsigned long expected, unsigned long value);

/* After the last store. */
void ml_hook_pages_close(struct ml_hook_pages *pages);

/* SPDX-License-Identifier: Apache-2.0 */
/* Stores into slots whose pages may be read-only, and leaves each page with the protection that it had. */
#pragma once

#include "preload/hooks/maps.h"

struct ml_hook_pages {
	const struct ml_hook_maps *maps;
	unsigned long open; /* the page that was made writable; */
	unsigned long bytes; /* 0 = none */
	unsigned int protection; /* that it is to get back */
	int n_unrestored; /* pages that the kernel would not give it back */
};

/*
 * Stores `value` if the slot holds `expected`, atomically. 0; 1 when it holds something else; -errno when the page cannot
 * be written to without harm: shared with others, or code.
 */
int ml_hook_pages_store(struct ml_hook_pages *pages, unsigned long slot, unsigned long expected, unsigned long value);

/* After the last store. */
void ml_hook_pages_close(struct ml_hook_pages *pages);

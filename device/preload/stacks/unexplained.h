/* SPDX-License-Identifier: Apache-2.0 */
/* Code addresses that no reading of the mappings explains: when it is worth it to read them again. */
#pragma once

#include "wire.h"

/*
 * 1 while looks for such an address are put off. A stack that cannot be followed ends at any word, which nothing will
 * ever explain; one in a library that has just come is another page than those that were looked for in vain.
 */
int ml_unexplained_is_put_off(ml_u64 address, ml_u64 now_ns);

/* After a look. address: what it did not explain either, 0 = it did. */
void ml_unexplained_note(ml_u64 address, ml_u64 now_ns);

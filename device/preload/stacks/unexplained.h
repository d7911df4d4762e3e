/* SPDX-License-Identifier: Apache-2.0 */
/* Decides when to read the maps again for code addresses that the last reading did not contain. */
#pragma once

#include "wire.h"

/*
 * 1 if this address is no reason to read the maps now. A stack that cannot be followed may end at a random word, which
 * no reading will contain. An address in a new library is in another page than the earlier ones.
 */
int ml_unexplained_is_put_off(ml_u64 address, ml_u64 now_ns);

/* To be called after a reading. address: still not contained, 0 = it is. */
void ml_unexplained_note(ml_u64 address, ml_u64 now_ns);

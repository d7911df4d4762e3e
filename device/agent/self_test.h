/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proof that the probes work, before the command begins: the waiting child runs into the probe on the
 * allocator's free() as the command will, and the programs must have counted it.
 */
#ifndef MEMLEAK_SELF_TEST_H
#define MEMLEAK_SELF_TEST_H

#include <stdbool.h>

#include "config.h"

/* Is there a probe that the child can run into on this architecture? */
bool ml_self_test_possible(const struct ml_config *config);

/*
 * In the child: maps the page of the probed instruction and executes that one instruction, with an address
 * that no allocator gives away. What it ran into is undone; the exec that follows forgets the rest.
 */
void ml_self_test_call(const struct ml_config *config);

#endif

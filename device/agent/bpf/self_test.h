/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proof that the probes work, before the command begins: the waiting child runs into the probe on the
 * allocator's free() as the command will, and the programs must have counted it.
 */
#ifndef MEMLEAK_SELF_TEST_H
#define MEMLEAK_SELF_TEST_H

#include <stdbool.h>

#include "agent/bpf/object.h"
#include "agent/protocol/config.h"
#include "agent/spawn/spawn.h"

/* Is there a probe that the child can run into on this architecture? */
bool ml_self_test_possible(const struct ml_config *config);

/*
 * In the child: maps the page of the probed instruction and executes that one instruction, with an address
 * that no allocator gives away. What it ran into is undone; the exec that follows forgets the rest.
 */
void ml_self_test_call(const struct ml_config *config);

/*
 * In the agent: has the waiting child do it. Returns how many calls the programs counted; 0 after an ERROR block when none
 * arrived.
 */
ml_u64 ml_self_test_run(struct ml_child *child, const struct ml_bpf *bpf);

#endif

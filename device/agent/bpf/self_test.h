/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies the probes before the command begins: the waiting child runs into the probe on free(), and the programs must count it. */
#pragma once

#include "agent/bpf/object.h"
#include "agent/protocol/config.h"
#include "agent/session/spawn.h"

/* Whether this architecture and configuration allow the test. */
bool ml_self_test_possible(const struct ml_config *config);

/*
 * In the child: maps the page of the probed instruction and executes that one instruction, with an address that no allocator
 * returns. Signals that follow are handled and undone; exec resets the rest.
 */
void ml_self_test_call(const struct ml_config *config);

/* In the agent: makes the waiting child run the test. Returns the number of counted calls; 0 after an ERROR block. */
ml_u64 ml_self_test_run(struct ml_child *child, const struct ml_bpf *bpf);

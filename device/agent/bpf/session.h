/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_BPF_SESSION_RUN_H
#define MEMLEAK_BPF_SESSION_RUN_H

#include "agent/protocol/config.h"

/* Runs a session with the BPF tracer up to its END block; returns the agent's exit code. */
int ml_bpf_run(const struct ml_config *config);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "agent/protocol/config.h"

/* Runs a session with the preload shim up to its END block; returns the agent's exit code. */
int ml_preload_run(const struct ml_config *config);

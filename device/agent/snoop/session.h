/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Runs a session of snoop: its lines come on standard input. Returns the agent's exit code. */
int ml_snoop_run(void);

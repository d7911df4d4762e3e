/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_SNOOP_SESSION_H
#define MEMLEAK_SNOOP_SESSION_H

/* Runs a session of snoop: its lines come on standard input. Returns the agent's exit code. */
int ml_snoop_run(void);

#endif

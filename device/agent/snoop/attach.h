/* SPDX-License-Identifier: Apache-2.0 */
/* Where the probes of snoop are placed, and what became of each. */
#ifndef MEMLEAK_SNOOP_ATTACH_H
#define MEMLEAK_SNOOP_ATTACH_H

#include "agent/snoop/object.h"

/*
 * Places all probes; command_pid stands for those of the command. What cannot be placed is told in PROBE_RESULTS blocks
 * beside what was. Returns how many places have their probes, or -1 after an ERROR block.
 */
int ml_snoop_attach(struct ml_snoop *snoop, const struct ml_snoop_config *config, int command_pid);

/* Detaches the probes and closes the object. */
void ml_snoop_close(struct ml_snoop *snoop);

#endif

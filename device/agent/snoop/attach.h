/* SPDX-License-Identifier: Apache-2.0 */
/* Places the probes of snoop, and reports each. */
#ifndef MEMLEAK_SNOOP_ATTACH_H
#define MEMLEAK_SNOOP_ATTACH_H

#include "agent/snoop/object.h"

/*
 * Places all probes; command_pid is the process of the command's own. Each result goes into a PROBE_RESULTS block. Returns the number of
 * placed probes, or -1 after an ERROR block.
 */
int ml_snoop_attach(struct ml_snoop *snoop, const struct ml_snoop_config *config, int command_pid);

/* Detaches the probes and closes the object. */
void ml_snoop_close(struct ml_snoop *snoop);

#endif

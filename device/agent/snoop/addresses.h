/* SPDX-License-Identifier: Apache-2.0 */
/* Where probes stand in the memory of processes: all that the programs can tell them by without cookies (before Linux 5.15). */
#ifndef MEMLEAK_SNOOP_ADDRESSES_H
#define MEMLEAK_SNOOP_ADDRESSES_H

#include "agent/snoop/object.h"

struct ml_snoop_addresses; /* what a process has mapped, as it was looked at last */

/* Tells the programs of a process's probes, where its mappings have changed. *known: NULL at first. */
void ml_snoop_addresses_update(struct ml_snoop *snoop, const struct ml_snoop_config *config, ml_u32 pid,
			       struct ml_snoop_addresses **known);

void ml_snoop_addresses_forget(struct ml_snoop_addresses *known);

#endif

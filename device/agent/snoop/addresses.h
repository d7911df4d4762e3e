/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of probes in processes: without cookies (before Linux 5.15) the programs know probes by them. */
#ifndef MEMLEAK_SNOOP_ADDRESSES_H
#define MEMLEAK_SNOOP_ADDRESSES_H

#include "agent/snoop/object.h"

struct ml_snoop_addresses; /* the mappings of a process at the last check */

/* Adds the probes of a process if its mappings have changed. *known: NULL at first. */
void ml_snoop_addresses_update(struct ml_snoop *snoop, const struct ml_snoop_config *config, ml_u32 pid,
			       struct ml_snoop_addresses **known);

void ml_snoop_addresses_forget(struct ml_snoop_addresses *known);

#endif

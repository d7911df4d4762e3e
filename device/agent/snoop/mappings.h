/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings and execs of the traced processes, for the stacks of their calls, and the addresses of probes in them. */
#pragma once

#include "agent/snoop/object.h"

struct ml_snoop_mappings;

/* Follows these processes from now on, of which n; they may be few. NULL after an ERROR block. */
struct ml_snoop_mappings *ml_snoop_mappings_open(const int *pids, int n);

/* Writes the current maps of running processes. 0, or -1: the host is gone. */
int ml_snoop_mappings_begin(struct ml_snoop_mappings *mappings);

/* Writes later changes. */
void ml_snoop_mappings_drain(struct ml_snoop_mappings *mappings);

void ml_snoop_mappings_close(struct ml_snoop_mappings *mappings);

/* Mappings of a process at the last check; free() them. Without cookies (before Linux 5.15) the programs know probes by their addresses. */
struct ml_snoop_addresses;

/* Adds the probes of a process if its mappings have changed. *known: NULL at first. */
void ml_snoop_addresses_update(struct ml_snoop *snoop, const struct ml_snoop_config *config, ml_u32 pid,
			       struct ml_snoop_addresses **known);

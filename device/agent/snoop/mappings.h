/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings and execs of the traced processes, for the stacks of their calls. */
#ifndef MEMLEAK_SNOOP_MAPPINGS_H
#define MEMLEAK_SNOOP_MAPPINGS_H

#include "wire.h"

struct ml_snoop_mappings;

/* Follows these processes from now on, of which n; they may be few. NULL after an ERROR block. */
struct ml_snoop_mappings *ml_snoop_mappings_open(const int *pids, int n);

/* Writes the current maps of running processes. 0, or -1: the host is gone. */
int ml_snoop_mappings_begin(struct ml_snoop_mappings *mappings);

/* Writes later changes. */
void ml_snoop_mappings_drain(struct ml_snoop_mappings *mappings);

void ml_snoop_mappings_close(struct ml_snoop_mappings *mappings);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes that are snooped on map and become, for the stacks of their calls. */
#ifndef MEMLEAK_SNOOP_MAPPINGS_H
#define MEMLEAK_SNOOP_MAPPINGS_H

#include "wire.h"

struct ml_snoop_mappings;

/* Follows these processes from now on, of which n; they may be few. NULL after an ERROR block. */
struct ml_snoop_mappings *ml_snoop_mappings_open(const int *pids, int n);

/* Writes what the processes have mapped so far: for those that run already. 0, or -1 when nobody reads any more. */
int ml_snoop_mappings_begin(struct ml_snoop_mappings *mappings);

/* Writes what happened since. */
void ml_snoop_mappings_drain(struct ml_snoop_mappings *mappings);

void ml_snoop_mappings_close(struct ml_snoop_mappings *mappings);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks of calls on their way into EVIDENCE blocks. */
#ifndef MEMLEAK_SNOOP_STACKS_H
#define MEMLEAK_SNOOP_STACKS_H

#include <stddef.h>

#include "wire.h"

struct ml_call_stacks;

struct ml_call_stacks *ml_call_stacks_create(void);
void ml_call_stacks_destroy(struct ml_call_stacks *stacks);

/* Adds a record of the program. 0, or -1: the host is gone. */
int ml_call_stacks_add(struct ml_call_stacks *stacks, const void *record, size_t bytes);

/* Writes all added records. 0 or -1 as above. */
int ml_call_stacks_write(struct ml_call_stacks *stacks);

#endif

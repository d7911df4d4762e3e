/* SPDX-License-Identifier: Apache-2.0 */
/* Ends of stacks that the BPF programs cannot see: looked up in the process's maps, once per thread. */
#ifndef MEMLEAK_STACK_ENDS_H
#define MEMLEAK_STACK_ENDS_H

#include "wire.h"

#define ML_STACK_ENDS_SLOTS 1024

struct ml_stack_ends {
	int fd;                           /* of the map tid → end */
	ml_u32 taught[ML_STACK_ENDS_SLOTS]; /* tids, by tid % ML_STACK_ENDS_SLOTS */
};

/* Tells the programs where the stack of this record's thread ends, if the record does not reach it. */
void ml_stack_ends_teach(struct ml_stack_ends *ends, const struct ml_evidence *record);

#endif

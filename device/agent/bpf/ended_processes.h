/* SPDX-License-Identifier: Apache-2.0 */
/* With --all: removes blocks, keys and entries of ended processes, so that the tables hold running processes only. */
#ifndef MEMLEAK_ENDED_PROCESSES_H
#define MEMLEAK_ENDED_PROCESSES_H

#include "agent/bpf/object.h"

/* Removed blocks count as freed, and in bpf->ended. The check costs some system calls for each process. */
void ml_bpf_remove_ended(struct ml_bpf *bpf);

#endif

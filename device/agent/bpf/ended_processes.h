/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where every process of the machine is traced: what those that have ended held went with them. Their blocks, keys and
 * entries are given up, so that the tables hold what lives, however many come and go.
 */
#ifndef MEMLEAK_ENDED_PROCESSES_H
#define MEMLEAK_ENDED_PROCESSES_H

#include "agent/bpf/object.h"

/* What is given up counts as freed, and in bpf->ended. Looking costs some system calls for each process. */
void ml_bpf_forget_ended(struct ml_bpf *bpf);

#endif

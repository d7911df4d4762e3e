/* SPDX-License-Identifier: Apache-2.0 */
/* A set of process ids. */
#ifndef MEMLEAK_PROCESS_SET_H
#define MEMLEAK_PROCESS_SET_H

#include <stdbool.h>
#include <stddef.h>

#include "wire.h"

struct ml_process_set {
	ml_u32 *pids;
	size_t count, room;
};

bool ml_process_set_has(const struct ml_process_set *set, ml_u32 pid);
/* -1: out of memory. */
int ml_process_set_add(struct ml_process_set *set, ml_u32 pid);
void ml_process_set_remove(struct ml_process_set *set, ml_u32 pid);

#endif

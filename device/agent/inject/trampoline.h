/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_INJECT_TRAMPOLINE_H
#define MEMLEAK_INJECT_TRAMPOLINE_H

#include "agent/ptrace/state.h"
#include "agent/process/target_objects.h"

/*
 * Finds code in the process that calls need; 0: none. libc is searched first: dlopen() loads into the namespace of the code that it
 * returns to (dlmopen(3)), and another namespace may have another libc.
 */
struct ml_ptrace_code ml_inject_find_code(const struct ml_target_objects *objects);

#endif

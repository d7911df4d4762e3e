/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_INJECT_TRAMPOLINE_H
#define MEMLEAK_INJECT_TRAMPOLINE_H

#include "agent/ptrace/state.h"
#include "agent/process/target_objects.h"

/*
 * What of a process's code a call needs: 0 where there is none. Of the libc of the objects where that has it: dlopen() loads
 * into the namespace of the code that it returns to (dlmopen(3)), and there may be another libc of another.
 */
struct ml_ptrace_code ml_inject_find_code(const struct ml_target_objects *objects);

#endif

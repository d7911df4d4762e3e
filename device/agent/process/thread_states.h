/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the running threads of a process: the first may exit before the others, and remains as a zombie. */
#ifndef MEMLEAK_THREAD_STATES_H
#define MEMLEAK_THREAD_STATES_H

#include <stdbool.h>

#include "wire.h"

/* All threads of it. pidfd: -1 where there is none (before Linux 5.3). */
bool ml_process_has_ended(ml_u32 pid, int pidfd);

/* Is there a thread beside the first that is not being ended itself? */
bool ml_process_has_other_threads(ml_u32 pid);

/* Gone, or as good as. */
bool ml_thread_has_ended(ml_u32 pid, ml_u32 tid);

#endif

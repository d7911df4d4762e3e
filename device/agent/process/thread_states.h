/* SPDX-License-Identifier: Apache-2.0 */
/* States of the threads of a process. The first one may exit before the others, and remains as a zombie. */
#pragma once

#include "wire.h"

/* Whether all threads have ended. pidfd: -1 if there is none (before Linux 5.3). */
bool ml_process_has_ended(ml_u32 pid, int pidfd);

/* Whether its first thread has ended, or will without running its code again. */
bool ml_process_is_ending(ml_u32 pid);

/* The wait status (wait(2)) of an ended process that another one started; -1: the kernel does not show it. */
int ml_process_exit_status(ml_u32 pid, int pidfd);

/* Whether a thread beside the first one exists that is not ending. */
bool ml_process_has_other_threads(ml_u32 pid);

/* The letter of the state as in /proc (R, S, D, Z …); X if the thread is gone. */
char ml_thread_letter(ml_u32 pid, ml_u32 tid);

/* The processor on which the thread has run last; ~0: unknown. */
ml_u32 ml_thread_processor(ml_u32 pid, ml_u32 tid);

/* Whether the thread is gone, or a zombie. */
bool ml_thread_has_ended(ml_u32 pid, ml_u32 tid);

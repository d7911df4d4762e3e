/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_STOPPED_THREAD_H
#define MEMLEAK_STOPPED_THREAD_H

#include <sys/types.h>

#include "wire.h"

/* Reads the general registers of a stopped thread, one per word; none if they are unreadable. */
struct ml_exit_stop ml_stopped_thread_read(pid_t pid, pid_t tid);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_STOPPED_THREAD_H
#define MEMLEAK_STOPPED_THREAD_H

#include <sys/types.h>

#include "wire.h"

/* The general registers of a thread that stands still for us, each in a word of its own; none where they cannot be read. */
struct ml_exit_stop ml_stopped_thread_read(pid_t pid, pid_t tid);

#endif

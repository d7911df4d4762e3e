/* SPDX-License-Identifier: Apache-2.0 */
/* How a process joins a session: finds the agent, makes the segment, hands it over. */
#ifndef MEMLEAK_CONNECT_H
#define MEMLEAK_CONNECT_H

#include <stddef.h>

#include "segment.h"

#define ML_CONNECT_VARIABLE "MEMLEAK_SESSION=" /* socket name ':' nonce as 16 hexadecimal digits */
#define ML_CONNECT_TEXT_MAX 96
#define ML_CONNECT_PRELOAD_MAX 4096

/* "MEMLEAK_SESSION=…" as it was found. */
extern char ml_connect_variable[] __attribute__((visibility("hidden")));

/* Remembers the session named in the environment. 0 when there is none. */
int ml_connect_read_environment(char *const *environment);

/* 0, or -errno: the process goes on unrecorded. */
int ml_connect_segment(struct ml_view *view);

/* Takes our variable and our entry of LD_PRELOAD out of the environment, so that the target finds the user's. */
void ml_connect_clean_environment(char **environment);

/*
 * Makes `extended` (room for two more than `environment` has, and NULL) with our variables back in; `preload` is memory
 * for one of them. 0 when they were never taken out.
 */
int ml_connect_extend_environment(char *const *environment, char **extended, char *preload, size_t preload_bytes);

#endif

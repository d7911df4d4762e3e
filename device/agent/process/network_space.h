/* SPDX-License-Identifier: Apache-2.0 */
/* Abstract socket names belong to a network namespace: the agent has to listen in that of the process that is to join. */
#ifndef MEMLEAK_NETWORK_SPACE_H
#define MEMLEAK_NETWORK_SPACE_H

#include <sys/types.h>

/* Sockets are made in the process's from now on. The way back, or -1 where there is none to go, or -2 with errno. */
int ml_network_enter(pid_t pid);
void ml_network_leave(int way_back);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_TRACEFS_H
#define MEMLEAK_TRACEFS_H

#include <stdbool.h>

/*
 * Makes tracefs visible to this process where the machine has not mounted it: in a mount namespace of its
 * own, so that nothing is left behind. Does nothing where it is there, or may not be mounted.
 */
void ml_tracefs_mount(void);

/*
 * Offset of a field in a tracepoint's event, from its format file; -1 when there is no such event or field,
 * or tracefs is not there. event: "sched/sched_process_fork".
 */
int ml_tracefs_field(const char *event, const char *field);

/* Does this kernel tell of calls of mmap, munmap and exec before they do their work? */
bool ml_tracefs_sees_mappings(void);

#endif

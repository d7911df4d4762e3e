/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wire.h"

/* Mounts tracefs for this process if the machine has not: in a mount namespace of its own, so that nothing is left behind. */
void ml_tracefs_mount(void);

/*
 * Offset of a field in a tracepoint's event, from its format file; -1: no such event or field, or no tracefs.
 * event: "sched/sched_process_fork".
 */
int ml_tracefs_field(const char *event, const char *field);

/* The same; 0: unknown. */
ml_u32 ml_tracefs_offset(const char *event, const char *field);

/* Whether this kernel has tracepoints at the entry of mmap, munmap and exec. */
bool ml_tracefs_sees_mappings(void);

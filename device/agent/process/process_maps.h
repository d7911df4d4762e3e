/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_PROCESS_MAPS_H
#define MEMLEAK_PROCESS_MAPS_H

#include <stddef.h>

#include "wire.h"

/* The text of /proc/PID/maps (malloc'ed), or NULL with errno set; *bytes is its length. */
char *ml_process_maps_read(ml_u32 pid, size_t *bytes);

/*
 * The same as it was at a time: read until the code in two readings is the same, of which the time lies between. Reading
 * takes long where the machine is busy, and the kernel locks the mappings for a page of text only (fs/seq_file.c). For a
 * process that changes all the while it is the time before the last reading.
 */
char *ml_process_maps_now(ml_u32 pid, ml_u64 *timestamp_ns, size_t *bytes);

/* Sends the text as a MAPS block stamped with its time. */
int ml_process_maps_write(ml_u32 pid, ml_u64 timestamp_ns, const char *text, size_t bytes);

/* One line, "START-END PERMISSIONS …": returns where the next one begins, or NULL where it is none or is cut. */
const char *ml_process_maps_line(const char *line, ml_u64 *start, ml_u64 *end, char permissions[4]);

/* Calls back for every executable mapping in the text. */
void ml_process_maps_code(const char *text, void (*on_code)(void *context, ml_u64 start, ml_u64 end), void *context);

/* End of the mapping that holds the address, 0 when none does. */
ml_u64 ml_process_maps_end(const char *text, ml_u64 address);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Files and folders of /proc/PID (proc(5)). */
#pragma once

#include <sys/types.h>

#include "wire.h"

/* A descriptor, or -1 with errno. name: "maps", "task/7/stat"; flags: O_RDONLY, O_RDWR …; O_CLOEXEC is added. */
int ml_proc_open(pid_t pid, const char *name, int flags);

/* Reads the beginning of a file as a text, "" if it is unreadable. Returns its bytes, or -1 with errno. */
ssize_t ml_proc_read(pid_t pid, const char *name, char *text, size_t room);

/* The number in a field of /proc/PID/status, such as "TracerPid:\t"; 0 if the line is missing. base: 10, or 16 for signal sets. */
unsigned long long ml_proc_field(const char *status, const char *name, int base);

#define ML_PROC_NONE (-1) /* `use` returned true for none */
#define ML_PROC_GONE (-2) /* the folder cannot be opened */

/* Calls `use` for each number in a folder, "task" or "fd", until it returns true. Returns that number, or one of the above. */
int ml_proc_find(pid_t pid, const char *folder, bool (*use)(void *context, int number), void *context);

/* The kernel's name of the process (/proc/PID/comm). The name stays as it is if that is unreadable. */
void ml_process_name(ml_u32 pid, char name[16]);

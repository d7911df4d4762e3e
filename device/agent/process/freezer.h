/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/*
 * Whether the process's control group is frozen, in either version of control groups: cached apps of Android, paused containers. Its
 * threads then run nothing, a borrowed call neither, until the thaw. False where the groups cannot be read.
 */
bool ml_process_is_frozen(pid_t pid);

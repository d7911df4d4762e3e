/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads memory of a process that may never come: of a file whose server is a process (FUSE), or of userfaultfd(2). Such a wait may not
 * end by a signal either, so a process of ours waits, which is left behind after a while. Its target's memory is not read again.
 */
#pragma once

#include "wire.h"

/* Copies so many bytes; 0, or -1 with errno. The first read that is given up is reported for each process. */
int ml_patient_read(ml_u32 pid, ml_u64 address, void *into, size_t bytes);

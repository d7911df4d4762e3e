/* SPDX-License-Identifier: Apache-2.0 */
/* Files that functions are probed in, by the descriptor on which they were checked. */
#pragma once

#include "agent/protocol/config.h"

/*
 * Opens the file if it is not open. 0 or an errno; ESTALE: the host read another file or another version of this one,
 * EINVAL: not a regular file. The target may have put anything at the path: a device or FIFO is not opened.
 */
int ml_probed_file_open(struct ml_probed_file *file);

/* The same; 0, or -1 after an ERROR block. */
int ml_probed_file_require(struct ml_probed_file *file);

/* After its probes were placed; its device and inode stay known. */
void ml_probed_file_close(struct ml_probed_file *file);

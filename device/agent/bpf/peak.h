/* SPDX-License-Identifier: Apache-2.0 */
/* The high-water mark that the programs keep (bpf/peak.bpf.h), as the agent reads it. */
#ifndef MEMLEAK_BPF_PEAK_H
#define MEMLEAK_BPF_PEAK_H

#include <stdbool.h>

#include "agent/bpf/object.h"

/* Writes HIGH_WATER blocks if the mark has risen since the last ones. -1: the host is gone. */
int ml_bpf_peak_write(struct ml_bpf *bpf);

/* For the nursery; context: struct ml_bpf. */
bool ml_bpf_was_in_peak(void *context, ml_u64 key);

#endif

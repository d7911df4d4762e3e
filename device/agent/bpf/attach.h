/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_BPF_ATTACH_H
#define MEMLEAK_BPF_ATTACH_H

#include "agent/bpf/object.h"

/* Places all probes in the process (pid > 0) or in every process (pid = -1). 0, or -1 after an ERROR block. */
int ml_bpf_attach(struct ml_bpf *bpf, const struct ml_config *config, int pid);

/* Removes all probes. The programs do nothing from the beginning of the call on. */
void ml_bpf_detach(struct ml_bpf *bpf);

/* Detaches, and closes the object. */
void ml_bpf_destroy(struct ml_bpf *bpf);

#endif

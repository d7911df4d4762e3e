/* SPDX-License-Identifier: Apache-2.0 */
/* The BPF program of each probe, the programs that a session needs, and their options before loading. */
#pragma once

#include <bpf/libbpf.h>

#include "bpf/session.h"
#include "agent/protocol/config.h"

/* is_old: of the object for kernels without cookies for probes. */

/* The name of the program at a function's entry; "": none. */
void ml_bpf_entry_program(const struct ml_config *config, const struct ml_probe *probe, bool is_old, char *name, size_t bytes);

const char *ml_bpf_return_program(const struct ml_config *config, const struct ml_probe *probe);

bool ml_bpf_is_wanted(const struct ml_config *config, const char *program, bool is_old);

/* Whether probes on one thread group would miss what counts: the calls of children that run in the target's memory. */
bool ml_bpf_misses_borrowers(const struct ml_config *config);

/* struct ml_bpf_options.alternate_stack, by the kernel's BTF. */
ml_u32 ml_bpf_alternate_stack(void);

/* 0, or a negative errno. Before the object is loaded. */
int ml_bpf_set_options(struct bpf_object *object, const struct ml_config *config, bool finds_mappings, ml_u32 alternate_stack);

/* Size of the live table's first level, as a power of two; a small max_live needs a small one. */
ml_u32 ml_bpf_buckets_shift(ml_u64 max_live);

/* Of a session of every process: the number of the probe's file among the probed ones; else 0. */
ml_u32 ml_bpf_file(const struct ml_config *config, const struct ml_probe *probe);

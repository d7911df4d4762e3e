/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The BPF tracer of the kernel's allocators. The configuration comes in; LIVE, KEYS, EVIDENCE and KERNEL_SYMBOLS blocks go out
 * (session.c). Here: the loaded object.
 */
#pragma once

#include <bpf/libbpf.h>

#include "agent/protocol/config.h"
#include "agent/kernel/layout.h"
#include "agent/kernel/symbols.h"

/* Functions that give blocks back without an event for each. */
#define ML_KERNEL_BULK 2

struct ml_kernel {
	struct bpf_object *object;
	struct ml_kernel_layout layout;
	struct bpf_link *links[ML_KERNEL_EVENTS + ML_KERNEL_BULK + 1]; /* one for the forks of a command's processes */
	int n_links;
	struct bpf_program *programs[ML_KERNEL_EVENTS]; /* NULL = not wanted, or not to be had */
	struct ml_kernel_key *keys; /* ML_KERNEL_KEY_SLOTS, shared with the programs */
	int live_fd, stacks_fd, counters_fd, tree_fd;
	int n_cpus;
	ml_u32 max_stacks;
	bool has_user; /* programs see the registers of the user's code */
	struct ring_buffer *ring;
};

/* Loads the programs that the configuration needs. 0, or -1 after an ERROR block. */
int ml_kernel_load(struct ml_kernel *kernel, const struct ml_config *config, const struct ml_kernel_symbols *symbols,
		   ring_buffer_sample_fn on_record, void *context);

/* Attaches programs of frees, then of allocations. 0, or -1 after an ERROR block. */
int ml_kernel_attach(struct ml_kernel *kernel, const struct ml_kernel_symbols *symbols);

void ml_kernel_detach(struct ml_kernel *kernel);
void ml_kernel_close(struct ml_kernel *kernel);

/* Sum of one counter over all CPUs. */
ml_u64 ml_kernel_counter(const struct ml_kernel *kernel, ml_u32 which);

/* Calls that no program saw, because one was at work on the same CPU. */
ml_u64 ml_kernel_missed(const struct ml_kernel *kernel);

/* Slot of a key in `keys`; ML_KERNEL_KEY_SLOTS: none. */
ml_u32 ml_kernel_find_key(const struct ml_kernel *kernel, ml_u64 key);

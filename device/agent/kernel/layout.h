/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which events of its allocators this kernel has, and where their fields lie. By the names of arguments in its BTF (then
 * programs are raw tracepoints), else by tracefs (then tracepoints): what a field is called and where it stands has changed
 * from version to version, and a version says little of a vendor's kernel.
 */
#pragma once

#include "bpf/kernel/tables.h"

struct ml_kernel_source {
	const char *program;  /* of kernel.bpf.c */
	const char *category; /* of the tracepoint, with its name: */
	const char *event;
	bool is_release;
	enum ml_kernel_group { ML_KERNEL_OF_SLAB, ML_KERNEL_OF_PAGES, ML_KERNEL_OF_PERCPU } group;
	bool is_optional; /* newer kernels have it no more */
	const char *pointer[2], *size[2], *cache; /* names of fields, the better first */
	ml_u32 size_bytes; /* of the size in a tracepoint's record */
};

extern const struct ml_kernel_source ml_kernel_sources[ML_KERNEL_EVENTS];

struct ml_kernel_layout {
	bool is_raw; /* by BTF */
	bool has[ML_KERNEL_EVENTS];
	bool has_copies; /* the event of a per-CPU allocation has its total size */
	ml_u32 cache_size; /* of struct kmem_cache */
	struct ml_kernel_event events[ML_KERNEL_EVENTS];
};

/* 0, or -1: neither BTF nor tracefs describes the events of the slab allocator. */
int ml_kernel_layout_find(struct ml_kernel_layout *layout, bool without_btf);

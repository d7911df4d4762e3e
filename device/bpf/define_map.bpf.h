/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Definitions of maps and programs, one line each. */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#define ML_MAP(kind, name, key_type, value_type, entries, flags) \
	struct {                                                 \
		__uint(type, BPF_MAP_TYPE_##kind);               \
		__uint(map_flags, flags);                        \
		__uint(max_entries, entries);                    \
		__type(key, key_type);                           \
		__type(value, value_type);                       \
	} name SEC(".maps")

#define ML_RING(name, bytes)                        \
	struct {                                    \
		__uint(type, BPF_MAP_TYPE_RINGBUF); \
		__uint(max_entries, bytes);         \
	} name SEC(".maps")

/* result: by `regs`, the registers at a probe, or by `event`, a tracepoint's context. */
#define ML_PROBE(section, name, result)             \
	SEC(section) int name(struct ml_regs *regs) \
	{                                           \
		(void)regs;                         \
		return result;                      \
	}

#define ML_TRACEPOINT(section, name, result) \
	SEC(section) int name(void *event)   \
	{                                    \
		(void)event;                 \
		return result;               \
	}

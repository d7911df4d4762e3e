/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Output through perf events, for kernels without the BPF ring buffer. The program sends the head of a record, and the
 * kernel adds the user's registers and stack (PERF_SAMPLE_REGS_USER, _STACK_USER).
 */
#pragma once

#include "stack_key.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(ml_u32));
	__uint(value_size, sizeof(ml_u32));
} evidence SEC(".maps");

/* Opened without a stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(ml_u32));
	__uint(value_size, sizeof(ml_u32));
} events SEC(".maps");

/* Returns 0, or not if there is no room. The agent fills in what the kernel adds. */
static __always_inline int ml_send_evidence(struct ml_regs *regs, struct ml_thread *thread, const struct ml_bpf_block *block,
					    ml_u64 address, ml_u64 key, ml_u64 flags, ml_u32 cap)
{
	struct ml_evidence record = {
		.record_bytes = sizeof(record),
		.flags = (ml_u16)(flags | ML_EVIDENCE_AT_RETURN),
		.function = (ml_u16)block->function,
		.sequence = block->sequence,
		.timestamp_ns = block->timestamp_ns,
		.key = key,
		.address = address,
		.size = block->size,
		.pid = (ml_u32)thread->process,
		.tid = thread->tid,
		.stack_address = ML_SP(regs),
		.registers_known = ML_REGISTERS_KNOWN,
	};

	(void)cap; /* known to the kernel */
	if (thread->depth)
		ml_add_fixups(&record, thread, thread->depth);
	return (int)bpf_perf_event_output(regs, &evidence, BPF_F_CURRENT_CPU, &record, sizeof(record));
}

/* The fill of the buffers is unknown here. */
static __always_inline bool ml_reserve_verifying(ml_u64 bytes)
{
	(void)bytes;
	return true;
}

static __always_inline long ml_output_event(struct ml_regs *regs, struct ml_event *event)
{
	return bpf_perf_event_output(regs, &events, BPF_F_CURRENT_CPU, event, sizeof(*event));
}

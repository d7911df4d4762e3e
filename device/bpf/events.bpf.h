/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Single calls: all with --trace, and those of the region ledger, which the agent keeps. */
#pragma once

#include "evidence.bpf.h"

/* lost: the cause to count if the ring is full. */
static __always_inline void ml_send_event(struct ml_regs *regs, struct ml_event *event, ml_u64 process, ml_u32 lost)
{
	event->timestamp_ns = bpf_ktime_get_ns();
	event->pid = (ml_u32)process;
	event->tid = (ml_u32)bpf_get_current_pid_tgid();
	if (ml_output_event(regs, event))
		ml_count(lost, 1);
}

static __always_inline void ml_trace_alloc(struct ml_regs *regs, const struct ml_thread *thread,
					   const struct ml_pending *pending, ml_u64 address, ml_u64 key)
{
	bool is_pair = pending->function >= ML_FN_PAIR; /* only successful calls are reported */
	bool has_old = !is_pair && !options.rules[pending->function & (ML_FN_MAX - 1)].is_indirect;
	struct ml_event event = {
		.address = address,
		.size = pending->size,
		.key = key,
		.old_address = has_old ? ML_UNTAG(pending->pointer) : 0,
		.function = pending->function,
		.error = address || is_pair ? 0 : 12 /* ENOMEM */,
	};

	ml_send_event(regs, &event, thread->process, ML_LOST_EVENTS);
}

static __always_inline void ml_trace_free(struct ml_regs *regs, ml_u64 process, ml_u32 function, ml_u64 address, ml_u64 size)
{
	struct ml_event event = { .address = address, .size = size, .function = function };

	ml_send_event(regs, &event, process, ML_LOST_EVENTS);
}

static __always_inline void ml_send_region(struct ml_regs *regs, const struct ml_thread *thread, ml_u32 function,
					   ml_u64 address, ml_u64 size, ml_u64 old_address, ml_u64 key)
{
	struct ml_event event = {
		.address = address, .size = size, .key = key, .old_address = old_address, .function = function
	};

	ml_send_event(regs, &event, thread->process, ML_LOST_REGIONS);
}

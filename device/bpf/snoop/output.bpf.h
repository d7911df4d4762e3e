/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sends a call: a record of constant size, followed by captured memory. */
#pragma once

#include "bpf/snoop/maps.bpf.h"

/* Captures memory behind a pointer at `at` in the thread's data; returns the offset of the next capture. */
static __noinline ml_u32 ml_capture(struct ml_snoop_thread *thread, ml_u64 pointer, ml_u32 what, ml_u32 at)
{
	ml_u32 argument = what & 0xff, kind = what >> 8 & 0xff, bytes = what >> 16 & (ML_SNOOP_DATA - 1);
	struct ml_call_capture *head;
	void *data;
	long kept;

	if (!thread)
		return 0;
	at &= ML_SNOOP_DATA - 8;
	head = (void *)&thread->data[at];
	data = &thread->data[at + sizeof(*head)];
	pointer = ML_UNTAG(pointer);
	if (kind == ML_SNOOP_STRING)
		kept = bpf_probe_read_user_str(data, bytes, (const void *)pointer);
	else
		kept = bpf_probe_read_user(data, bytes, (const void *)pointer) ?: bytes;
	head->argument = (ml_u16)argument;
	head->error = kept < 0 ? (ml_s32)-kept : 0;
	head->bytes = kept < 0 ? 0 : (ml_u16)kept;
	if (kept > 0 && kind == ML_SNOOP_STRING)
		head->bytes--; /* the final zero */
	return at + sizeof(*head) + ((head->bytes + 7) & (2 * ML_SNOOP_DATA - 8));
}

/* Returns the bytes of all captures; thread->arguments has the values. */
static __noinline ml_u32 ml_capture_all(struct ml_snoop_thread *thread, const struct ml_snoop_function *function,
					ml_u32 at_return)
{
	ml_u32 at = 0;

	if (!thread || !function)
		return 0;
	thread->event.n_captures = 0;
	for (ml_u32 i = 0; i < ML_SNOOP_CAPTURES && i < function->n_captures; i++) {
		const struct ml_snoop_capture *capture = &function->captures[i];
		bool is_return = capture->argument == ML_CALL_RETURN;
		ml_u64 value = is_return ? thread->arguments[0] : thread->arguments[capture->argument & 7];

		if (is_return != !!at_return || capture->kind == ML_SNOOP_PATH)
			continue;
		if (at + sizeof(struct ml_call_capture) + capture->bytes + 8 > ML_SNOOP_DATA)
			break;
		at = ml_capture(thread, value, capture->argument | capture->kind << 8 | (ml_u32)capture->bytes << 16, at);
		thread->event.n_captures++;
	}
	return at;
}

static __always_inline int ml_send(struct ml_snoop_thread *thread, ml_u32 data_bytes)
{
	if (!bpf_ringbuf_output(&calls, &thread->event, sizeof(thread->event) + data_bytes, options.quiet_flags))
		return 0;
	ml_count(ML_LOST_EVENTS, 1);
	return -1;
}

/* thread->event is complete except for its captures. */
static __noinline int ml_send_call(struct ml_snoop_thread *thread, const struct ml_snoop_function *function, ml_u32 at_return)
{
	ml_u32 bytes;

	if (!thread || !function)
		return 0;
	bytes = function->n_captures ? ml_capture_all(thread, function, at_return) : 0;
	return ml_send(thread, bytes <= ML_SNOOP_DATA ? bytes : ML_SNOOP_DATA);
}

/* Whether the rate limit allows one more call of the function in this second. */
static __always_inline bool ml_is_within_rate(struct ml_snoop_function *function, ml_u64 now_ns)
{
	ml_u64 second = now_ns / 1000000000ull;

	if (!options.rate)
		return true;
	if (function->second != second) { /* two threads may both begin the second, which allows one call too many at most */
		function->second = second;
		function->n_in_second = 0;
	}
	if (function->n_in_second >= options.rate)
		return false;
	ml_add(&function->n_in_second, 1);
	return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Evidence: the registers and the stack of a call, sent when its key needs them. */
#pragma once

#include "preload/freestanding/registers.h"
#include "preload/segment/segment.h"
#include "preload/stacks/stack_key.h"

/* ml_evidence_find_stack() for a stack other than the last. */
void ml_evidence_find_bounds(const struct ml_view *view, struct ml_thread *thread, struct ml_caller *caller);

/* Sets readable_end and stack_end. */
static inline void ml_evidence_find_stack(const struct ml_view *view, struct ml_thread *thread, struct ml_caller *caller)
{
	if (__builtin_expect(caller->stack_pointer - thread->stack_low < thread->stack_high - thread->stack_low, 1))
		caller->readable_end = caller->stack_end = thread->stack_high;
	else
		ml_evidence_find_bounds(view, thread, caller);
}

struct ml_evidence_call {
	enum ml_function function;
	ml_u64 address;
	ml_u64 key;
	const struct ml_entry *block;
	const struct ml_registers *registers;
	const struct ml_caller *caller;
	const struct ml_memo *memo; /* of this stack, or NULL */
};

/* Sends evidence whether it is due or not. flags: enum ml_evidence_flag. Failures are counted. */
void ml_evidence_send(const struct ml_view *view, struct ml_thread *thread, const struct ml_evidence_call *call, ml_u32 flags);

void ml_evidence_send_if_due(const struct ml_view *view, struct ml_thread *thread, const struct ml_evidence_call *call);

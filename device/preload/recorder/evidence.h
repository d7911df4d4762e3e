/* SPDX-License-Identifier: Apache-2.0 */
/* Evidence: the registers and the stack of a call, sent when its key needs them. */
#pragma once

#include "preload/freestanding/registers.h"
#include "preload/segment/segment.h"
#include "preload/stacks/stack_key.h"

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

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The return addresses in a stack slice that uretprobes replaced, and their original values. */
#pragma once

#include "stack_key.bpf.h"

/*
 * Adds those of pending calls, the innermost first. If there are too many, the stack is right up to the first that is
 * missing.
 */
static __noinline void ml_add_fixups(struct ml_evidence *evidence, struct ml_thread *thread, ml_u64 depth)
{
	ml_u16 n = 0;

	for (ml_u32 i = 0; i < ML_PENDING && i < depth; i++) {
		const struct ml_pending *pending = &thread->pending[(depth - 1 - i) & (ML_PENDING - 1)];

		if (n == ML_FIXUPS) {
			evidence->flags |= ML_EVIDENCE_FIXUPS_CUT;
			break;
		}
		evidence->fixups[n & (ML_FIXUPS - 1)].slot_address = pending->sp;
		evidence->fixups[n & (ML_FIXUPS - 1)].value = pending->return_address;
		n++;
	}
	evidence->n_fixups = n;
}

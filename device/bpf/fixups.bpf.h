/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What in a slice of stack is not what the program wrote. */
#ifndef MEMLEAK_FIXUPS_BPF_H
#define MEMLEAK_FIXUPS_BPF_H

#include "stack_key.bpf.h"

/* The return addresses that uretprobes hide in the stack above us: those of the calls still pending. */
static __noinline void ml_add_fixups(struct ml_evidence *evidence, struct ml_thread *thread, ml_u64 depth)
{
	ml_u16 n = 0;

	for (ml_u32 i = 0; i < ML_PENDING && i < depth; i++) {
		if (n == ML_FIXUPS) {
			evidence->flags |= ML_EVIDENCE_FIXUPS_CUT;
			break;
		}
		evidence->fixups[n & (ML_FIXUPS - 1)].slot_address = thread->pending[i].sp;
		evidence->fixups[n & (ML_FIXUPS - 1)].value = thread->pending[i].return_address;
		n++;
	}
	evidence->n_fixups = n;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Return addresses that return probes hide: put back where more calls were pending than evidence has fixups for, and on an architecture with a link register: the trampoline stands wherever the
 * probed function has saved that register. The programs know the frame (a fixup's slot_address is its end, the sp of the
 * entry) and the trampoline itself, which is what the register holds when a probed function returns.
 */
#ifndef MEMLEAK_TRAMPOLINES_H
#define MEMLEAK_TRAMPOLINES_H

#include "bpf/session.h"
#include "cfi/cfi.h"

#define ML_TRAMPOLINES_BYTES (sizeof(struct ml_evidence) + 64 * 8 + 65536)

#define ML_RETURNS_TOLD 64 /* whose evidence has not come yet; a power of two */

struct ml_trampolines {
	struct ml_bpf_returns told[ML_RETURNS_TOLD]; /* by sequence */
	_Alignas(8) ml_u8 room[ML_TRAMPOLINES_BYTES];
};

/* All calls that were pending when the evidence of the same sequence number was taken. */
void ml_trampolines_told(struct ml_trampolines *trampolines, const struct ml_bpf_returns *returns);

/*
 * The record of so many bytes as the program has written it: itself, or a copy that lives until the next call, with the
 * return addresses in their places and no fixups left, where there is a link register or more was told than it holds. Words that a walk has read are the original ones already.
 */
const struct ml_evidence *ml_trampolines_undo(struct ml_trampolines *trampolines, const struct ml_cfi_arch *arch,
					      const struct ml_evidence *record, ml_u64 bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Return addresses that return probes hide, on an architecture with a link register: the trampoline stands wherever the
 * probed function has saved that register. The programs know the frame (a fixup's slot_address is its end, the sp of the
 * entry) and the trampoline itself, which is what the register holds when a probed function returns.
 */
#ifndef MEMLEAK_TRAMPOLINES_H
#define MEMLEAK_TRAMPOLINES_H

#include "../cfi/cfi.h"

#define ML_TRAMPOLINES_BYTES (sizeof(struct ml_evidence) + 64 * 8 + 65536)

struct ml_trampolines {
	_Alignas(8) ml_u8 room[ML_TRAMPOLINES_BYTES];
};

/*
 * The record of so many bytes as the program has written it: itself, or a copy that lives until the next call, with the
 * return addresses in their places and no fixups left. Words that a walk has read are the original ones already.
 */
const struct ml_evidence *ml_trampolines_undo(struct ml_trampolines *trampolines, const struct ml_cfi_arch *arch,
					      const struct ml_evidence *record, ml_u64 bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores return addresses that return probes replaced: where more calls were pending than evidence has fixups for, and on
 * architectures with a link register, where the probed function may have saved the trampoline anywhere. The programs know the frame
 * (a fixup's slot_address is its end, the sp of the entry) and the trampoline, which the register holds when a function returns.
 */
#pragma once

#include "bpf/session.h"
#include "cfi/cfi.h"

#define ML_TRAMPOLINES_BYTES (sizeof(struct ml_evidence) + 64 * 8 + ML_ABOVE_BYTES_MAX)

#define ML_RETURNS_ANNOUNCED 64 /* their evidence has not come yet; a power of two */

struct ml_trampolines {
	struct ml_bpf_returns announced[ML_RETURNS_ANNOUNCED]; /* by sequence */
	_Alignas(8) ml_u8 room[ML_TRAMPOLINES_BYTES];
};

/* All pending calls of the evidence with the same sequence number. */
void ml_trampolines_announce(struct ml_trampolines *trampolines, const struct ml_bpf_returns *returns);

/*
 * Returns the record, or a copy that is valid until the next call, with the return addresses restored and no fixups left. The copy is
 * made if there is a link register, or more calls were announced than the record holds. Words of a walk are original already.
 */
const struct ml_evidence *ml_trampolines_undo(struct ml_trampolines *trampolines, const struct ml_cfi_arch *arch,
					      const struct ml_evidence *record, ml_u64 bytes);

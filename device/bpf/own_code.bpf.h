/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tests whether a call comes from inside the allocator's own code. */
#pragma once

#include <stdbool.h>

#include "maps.bpf.h"

/* The index of the probed file. */
static __always_inline ml_u32 ml_file(struct ml_regs *regs)
{
#ifdef ML_OLD_KERNEL /* without cookies */
	(void)regs;
	return 0;
#else
	return options.n_files > 1 ? bpf_get_attach_cookie(regs) >> ML_BPF_FILE_SHIFT & (ML_BPF_FILES - 1) : 0;
#endif
}

/* Whether a return address is the allocator's own code. ip: of the entry probe of `function` in the file. */
static __always_inline bool ml_is_own_code(ml_u32 file, ml_u64 ip, ml_u64 return_address, ml_u32 function)
{
	const volatile struct ml_bpf_function *probed =
		&options.functions[file & (ML_BPF_FILES - 1)][function & (ML_FN_MAX - 1)];
	ml_u64 offset = return_address - (ip - probed->entry_offset);

	return offset >= probed->text_low && offset < probed->text_high;
}

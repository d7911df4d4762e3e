/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's live blocks and the counters of its keys as blocks of the wire format. */
#pragma once

#include "agent/kernel/evidence.h"

/* -1: the host is gone, or out of memory. */
int ml_kernel_snapshot(const struct ml_kernel *kernel, const struct ml_kernel_evidence *evidence, ml_u64 number);

/* lost: counted by the agent, ML_LOST_MAX of them, added to those of the programs. -1: the host is gone. */
int ml_kernel_status(const struct ml_kernel *kernel, const struct ml_kernel_evidence *evidence, ml_u64 evidence_records,
		     const ml_u64 *lost);

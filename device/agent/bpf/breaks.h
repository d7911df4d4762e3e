/* SPDX-License-Identifier: Apache-2.0 */
/* Where the break of each process was: BPF sees brk() return the new one only (bpf/regions.bpf.h). */
#pragma once

#include <stdbool.h>

#include "wire.h"

#define ML_BREAKS 1024u

/* All zero: empty. A process may take the place of another in it; then one change of its break is not seen. */
struct ml_breaks {
	struct {
		ml_u32 pid;
		ml_u64 address;
	} rows[ML_BREAKS];
};

/* Makes an event of SBRK without a size one of the region that came or went. false: there is none. */
bool ml_breaks_move(struct ml_breaks *breaks, struct ml_event *event);

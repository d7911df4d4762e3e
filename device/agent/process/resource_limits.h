/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's own limits (setrlimit(2)). Raise them after the command has started, which would inherit them. */
#pragma once

#include "wire.h"

#define ML_DESCRIPTORS_OF_TRACER 1024u /* maps, programs, and two links a probe, with room */

/* Raises the limit of open files to the hard limit, and that to at least `wanted` if permitted. */
void ml_limits_raise_descriptors(ml_u32 wanted);

/* Before Linux 5.11 BPF maps count against RLIMIT_MEMLOCK; later this has no effect. */
void ml_limits_raise_memlock(void);

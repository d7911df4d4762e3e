/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's own limits (setrlimit(2)). A command is to find them as they were: raise after it was started. */
#ifndef MEMLEAK_RESOURCE_LIMITS_H
#define MEMLEAK_RESOURCE_LIMITS_H

#include "wire.h"

#define ML_DESCRIPTORS_OF_TRACER 1024u /* maps, programs, and two links a probe, with room */

/* Open files up to the hard limit, and that to at least so many where it may be raised. */
void ml_limits_raise_descriptors(ml_u32 wanted);

/* Before 5.11 BPF maps count against RLIMIT_MEMLOCK; where they do not, this changes nothing. */
void ml_limits_raise_memlock(void);

#endif

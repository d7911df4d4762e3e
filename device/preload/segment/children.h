/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wire.h"

#define ML_CHILDREN_PIDS 512u /* power of two: 32-bit processors divide by nothing else */

/* The last part of the segment, which the forked children of a process keep: nothing in the process relies on it. */
struct ml_children {
	ml_u64 n; /* forked children that called the allocator and are not followed */
	ml_u32 pids[ML_CHILDREN_PIDS]; /* of the latest of them: child i's is at i % ML_CHILDREN_PIDS */
};

/* SPDX-License-Identifier: Apache-2.0 */
/* Functions in Python that the agent knows. A part of segment.h. */
#pragma once

#include "wire.h"

/* A function in Python that was described, by the address of its code object. */
#define ML_PYTHON_SLOT_BITS 15

struct ml_python_slot {
	ml_u64 code;
	ml_u64 content;
	ml_u64 number;
};

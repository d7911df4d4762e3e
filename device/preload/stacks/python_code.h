/* SPDX-License-Identifier: Apache-2.0 */
/* Functions in Python by number. A function is described to the agent once, and again where its number was given to another. */
#pragma once

#include "preload/segment/segment.h"
#include "preload/stacks/python_layout.h"

/* Of the code object at an address; 0 = the agent takes no record. The caller holds ML_OWNER_BUSY. */
ml_u32 ml_python_code_number(const struct ml_view *view, struct ml_thread *thread, const struct ml_python_layout *layout,
			     ml_u64 code);

/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that the process loads in a way that leads their calls of malloc() past the shim. */
#pragma once

#include "wire.h"

enum ml_unseen_load {
	ML_LOADED_NAMESPACE = 1, /* dlmopen(): with a C library of its own */
	ML_LOADED_DEEP = 2,      /* RTLD_DEEPBIND: bound to libc's functions, not to those that are interposed */
};

/* All zero: none. */
struct ml_unseen_loads {
	ml_u32 noted; /* bits of enum ml_unseen_load: a thread writes what follows */
	ml_u32 kinds; /* … and has done so */
	char deep[120]; /* the first library of ML_LOADED_DEEP */
};

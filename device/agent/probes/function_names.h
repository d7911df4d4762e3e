/* SPDX-License-Identifier: Apache-2.0 */
/* Names of enum ml_function, for messages. */
#pragma once

#include "wire.h"

static const char *const ml_function_names[ML_FN_MAX] = {
	[ML_FN_MALLOC] = "malloc",
	[ML_FN_CALLOC] = "calloc",
	[ML_FN_REALLOC] = "realloc",
	[ML_FN_REALLOCARRAY] = "reallocarray",
	[ML_FN_POSIX_MEMALIGN] = "posix_memalign",
	[ML_FN_MEMALIGN] = "memalign",
	[ML_FN_ALIGNED_ALLOC] = "aligned_alloc",
	[ML_FN_VALLOC] = "valloc",
	[ML_FN_PVALLOC] = "pvalloc",
	[ML_FN_FREE] = "free",
	[ML_FN_CFREE] = "cfree",
	[ML_FN_FREE_SIZED] = "free_sized",
	[ML_FN_FREE_ALIGNED_SIZED] = "free_aligned_sized",
};

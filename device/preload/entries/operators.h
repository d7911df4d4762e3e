/* SPDX-License-Identifier: Apache-2.0 */
/* operator new and delete of an allocator's own object. Nothing is interposed by these names: slots lead to the entries. */
#pragma once

#include <stddef.h>

#include "preload/entries/function_table.h"

/* The other parameters, if there are any, are passed on: an alignment, or the address of std::nothrow. */
struct ml_operators {
#define FIELD(name) void *(*name)(size_t size, size_t more, size_t most);
	ML_OPERATORS_NEW(FIELD)
#undef FIELD
#define FIELD(name) void (*name)(void *pointer, size_t more, size_t most);
	ML_OPERATORS_DELETE(FIELD)
#undef FIELD
#define FIELD(name) void *(*name)(void *old, size_t size, size_t flags);
	ML_OPERATORS_RESIZE(FIELD)
#undef FIELD
};

/* The originals. */
extern struct ml_operators ml_operators __attribute__((visibility("hidden")));

/*
 * Whether the object that defines malloc also defines operator new or sdallocx, in a process that was started with the shim. If
 * not, what operator new takes comes by malloc.
 */
int ml_operators_are_the_allocator_s(void);

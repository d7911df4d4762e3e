/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_HOOK_ROWS_H
#define MEMLEAK_HOOK_ROWS_H

#include "preload/segment/segment.h"

/* Tells the agent what became of a module. view: NULL = nobody is to be told. By one thread at a time. */
void ml_hook_rows_add(const struct ml_view *view, const struct ml_hooked *row);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The host's plan of inline hooks, as lines of the configuration (docs/wire-protocol.md, "The agent's input"). */
#ifndef MEMLEAK_PATCH_LINES_H
#define MEMLEAK_PATCH_LINES_H

#include <stdbool.h>

#include "agent/inject/patch.h"

/*
 * `patch ADDRESS EXPECTED PATCH TRAMPOLINE CODE MOVES RETURNS` and `slot ADDRESS VALUE`: true when it is one, and is
 * understood. *patches is allocated by the first.
 */
bool ml_patch_take_line(struct ml_patches **patches, const char *key, char *text);

#endif

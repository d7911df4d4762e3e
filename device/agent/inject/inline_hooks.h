/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the keeper around the calls of the shim in a session with inline hooks; no-ops without such hooks. */
#ifndef MEMLEAK_INLINE_HOOKS_H
#define MEMLEAK_INLINE_HOOKS_H

#include "agent/inject/inject.h"
#include "agent/inject/patch.h"

/* Before attaching: writes the addresses of the originals into the shim. 0, or -1: do not attach. */
int ml_inline_before(const struct ml_injection *injection, struct ml_patch_result *changed);

/*
 * After attaching: patches the code, or detaches the shim again. After detaching: restores the code. In the other order a block freed
 * past the hooks would still count as held, and its address be returned by a call that is still recorded. Adds to `injected`.
 */
void ml_inline_after(const struct ml_injection *injection, struct ml_patch_result *changed,
		     struct ml_injected *injected);

#endif

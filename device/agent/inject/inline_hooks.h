/* SPDX-License-Identifier: Apache-2.0 */
/* What the keeper does around the shim's calls in a session with inline hooks; without such hooks, nothing. */
#ifndef MEMLEAK_INLINE_HOOKS_H
#define MEMLEAK_INLINE_HOOKS_H

#include "agent/inject/inject.h"
#include "agent/inject/patch.h"

/* Before attaching the shim is told of its originals. 0, or -1: do not go on. */
int ml_inline_before(const struct ml_injection *injection, struct ml_patch_result *changed);

/*
 * When it has attached the code is changed, or it is to detach again. When it has detached the code is put back: were that
 * done first, a block freed past the hooks would still be held, and its address be given to a call that is still recorded.
 * What was done is added to `injected`.
 */
void ml_inline_after(const struct ml_injection *injection, struct ml_patch_result *changed,
		     struct ml_injected *injected);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks by slots (PLT/GOT): loaded modules come in, slots that lead to our entries and reports for the agent go out.
 *
 * A slot is patched if it holds the real function, or the module's own stub of lazy binding, which would bind to the
 * first definition, as the real function was found. The stubs of a module that is bound to itself (DT_SYMBOLIC, or by a
 * slot of the heap that leads to its own definition) stay. The loader's lock is held throughout, so that nothing is
 * unmapped meanwhile. Each slot is one atomic store.
 *
 * Not reached: calls inside a libc that binds its own names, addresses from dlsym() or copied from a slot before,
 * allocators private to a module, and other namespaces of dlmopen().
 */
#pragma once

#include "preload/segment/segment.h"

/*
 * Finds the real functions. Once is enough: the allocator of a process does not change. Returns enum ml_attach_result
 * or -errno.
 */
int ml_plt_hook_find_originals(void);

/* Finds the functions of the session's --pairs for the next pass. 0 or -errno. */
int ml_plt_hook_find_pairs(const struct ml_view *view);

/* Patches all loaded modules. wanted: bits of ML_HOOK_BIT(). Returns enum ml_attach_result or -errno. */
int ml_plt_hook_patch(unsigned int wanted);

/* Updates the books for modules that came or went. New ones came after `since_ns`. */
void ml_plt_hook_follow(ml_u64 since_ns);

/* Restores all slots. Returns the number of those that hold another hook by now, or -errno. */
int ml_plt_hook_restore(void);

/* Reports the known modules to this view's segment, and every change from now on. NULL: no more. */
void ml_plt_hook_report_to(const struct ml_view *view);

/* 1 if the address belongs to a known module and no module has a RUNPATH. */
int ml_plt_hook_is_plain_caller(unsigned long address);

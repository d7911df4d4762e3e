/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets the slots (PLT/GOT) through which loaded modules call the allocator to our entries, and back.
 *
 * A slot is patched when it holds the real function; or, where it is bound at the first call, still the address of the
 * module's own stub: then the name would be bound to the first module that defines it, which is what the real function
 * was found by. A module with another function of that name may be bound to itself (DT_SYMBOLIC) and is left alone there.
 * Everything is done while the loader's lock is held, so that nothing is unmapped meanwhile; each slot by one atomic store.
 *
 * Not reached: calls inside a libc that binds its own names itself, addresses that dlsym() gave or that were
 * copied from a slot before, allocators that a module has for itself, other namespaces of dlmopen().
 */
#pragma once

#include "preload/segment/segment.h"

/*
 * Finds the real functions (once; what a process allocates with does not change), whatever then happens to slots.
 * enum ml_attach_result, or -errno.
 */
int ml_plt_hook_find_originals(void);

/* Finds the functions of the session's --pairs, which the next pass then patches. 0, or -errno. */
int ml_plt_hook_find_pairs(const struct ml_view *view);

/* Patches all loaded modules. enum ml_attach_result, or -errno. */
int ml_plt_hook_patch(int with_regions);

/* Looks for modules that came or went since the last time, those that came since `since_ns`. */
void ml_plt_hook_follow(ml_u64 since_ns);

/* Puts everything back. The slots for which that was not possible, as another's hook stands in them; or -errno. */
int ml_plt_hook_restore(void);

/* From now on what becomes of modules is told to the segment of this view, and first of all what has become of them. */
void ml_plt_hook_report_to(const struct ml_view *view);

/* 1 when the address belongs to a module that is known, and no module names a path of its own to look for libraries. */
int ml_plt_hook_is_plain_caller(unsigned long address);

/* SPDX-License-Identifier: Apache-2.0 */
/* The modules that are loaded, in the order in which the loader looks names up. */
#pragma once

#include <link.h>

#include "preload/hooks/maps.h"

struct ml_module {
	const char *name; /* a path; "" = the program, mostly */
	unsigned long base; /* what is added to the file's addresses */
	unsigned long dynamic;
	unsigned long low, high; /* of all its segments */
	unsigned long relro_low, relro_high; /* read-only once it is relocated */
};

/*
 * Reads the maps, which have to be dropped, and calls `visit` for each module until it does not return 0: all while the
 * loader's own lock is held (musl holds it in between only; it never unmaps), so that the maps are true of the modules.
 * 0, or -errno; -ENOSYS when there is no way to the list.
 *
 * dl_iterate_phdr() is found by ml_linker_find() where it is not bound for us.
 */
int ml_modules_each(struct ml_hook_maps *maps, int (*visit)(void *context, const struct ml_module *module), void *context);

/* From the program headers of one: 0, or -1 when it has no segments or no dynamic section. Nothing is read that is not mapped. */
int ml_module_describe(struct ml_module *module, const struct ml_hook_maps *maps, unsigned long base,
		       const ElfW(Phdr) *segments, size_t n);

/*
 * The address of the function of this name in libc, libdl or the linker, or 0. bionic binds names of libc's only in a
 * library that says which libraries it needs.
 *
 * Up to Android 7 no loaded module defines these functions: libdl.so is a file to link with, its names are a table inside
 * the linker (bionic, linker/dlfcn.cpp). There libc's own slot of dlsym(), which is bound since the process began, says
 * where dlsym() is, and that is asked: the caller holds no lock but the loader's, which knows who holds it. What is found
 * so is the linker's code, or nothing: a slot that somebody else has set is not believed.
 */
unsigned long ml_linker_find(const char *name);

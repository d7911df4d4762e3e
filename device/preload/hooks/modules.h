/* SPDX-License-Identifier: Apache-2.0 */
/* The loaded modules in the loader's lookup order. */
#pragma once

#include <link.h>

#include "preload/freestanding/mappings.h"

struct ml_module {
	const char *name; /* path; "" usually means the program */
	unsigned long base; /* load bias */
	unsigned long dynamic;
	unsigned long low, high; /* of all segments */
	unsigned long relro_low, relro_high; /* read-only after relocation */
};

/*
 * Reads the maps and calls `visit` with them for each module. The loader's lock is held throughout, so that the maps
 * match the modules (musl releases it in between, but never unmaps). Returns 0 or -errno; -ENOSYS if dl_iterate_phdr()
 * is not bound for us and ml_linker_find() does not find it.
 */
typedef void ml_visit_module(void *context, const struct ml_mappings *maps, const struct ml_module *module);
int ml_modules_each(ml_visit_module *visit, void *context);

/*
 * The address of a function of libc, libdl or the linker by name, or 0. bionic binds libc's names only for libraries
 * that list libc as needed.
 *
 * Up to Android 7 no loaded module defines these functions: libdl.so exists for linking only, and its names are a table
 * inside the linker (bionic, linker/dlfcn.cpp). There dlsym() is found by libc's own slot, which has been bound since
 * the process began, and is called with no lock held but the loader's recursive one. Only addresses in the linker's
 * code are believed.
 */
unsigned long ml_linker_find(const char *name);

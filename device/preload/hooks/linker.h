/* SPDX-License-Identifier: Apache-2.0 */
/* The dynamic linker's functions, in a process in which no name of libc's or of the linker's is bound for us. */
#ifndef MEMLEAK_HOOK_LINKER_H
#define MEMLEAK_HOOK_LINKER_H

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

#endif

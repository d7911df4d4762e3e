/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CPython's objects. Those of up to 512 bytes lie in arenas of its own allocator, which malloc never sees. The interpreter offers
 * its allocators to be wrapped (PyMem_GetAllocator, PyMem_SetAllocator; docs.python.org/3/c-api/memory.html), so that objects reach
 * the recorder as blocks of malloc's family. What the original calls meanwhile (malloc, mmap) is below an object and does not count.
 */
#pragma once

/* Wraps the allocators where the process has an interpreter and the session wants objects. May be called again: what took our place
 * is wrapped once more. The caller may hold the interpreter's lock, but not one of the loader or an allocator. */
void ml_python_objects_wrap(void);

/* Puts the originals back where nothing has been put above us. */
void ml_python_objects_unwrap(void);

/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded objects of another process, for a host that cannot read its memory. */
#ifndef MEMLEAK_LOADED_OBJECTS_H
#define MEMLEAK_LOADED_OBJECTS_H

/*
 * One line for each object of the dynamic linker's list, in symbol lookup order:
 * `DYNAMIC [NAME]...`, the address of its dynamic section in hexadecimal and which of the names it defines as functions.
 * Nothing for a static program, or before the linker has run. Returns the exit code: 0, or 4 where the process cannot
 * be read.
 */
int ml_loaded_objects_print(int pid, char *const *names, int n_names);

/* The bytes of this kernel's vdso, which every process of the same architecture has; nothing where there is none. */
int ml_vdso_print(void);

#endif

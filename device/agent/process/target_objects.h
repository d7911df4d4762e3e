/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded objects of another process and their symbols, read from its memory, because its files may have changed. */
#pragma once

#include "wire.h"

#define ML_TARGET_OBJECTS_MAX 4096
#define ML_TARGET_PATH_MAX 1024

struct ml_target_object {
	ml_u64 bias, dynamic;      /* link_map.l_addr, .l_ld */
	ml_u64 symbols, strings;   /* addresses of its dynamic symbols and their names */
	ml_u64 strings_bytes;
	ml_u32 n_symbols;
	char path[ML_TARGET_PATH_MAX]; /* as the dynamic linker has it; "" for the program itself */
};

struct ml_target_objects {
	ml_u32 pid;
	ml_u64 interpreter; /* where the dynamic linker is mapped, 0: the program is linked statically */
	struct ml_target_object *objects;
	size_t n, room;
	ml_u64 unread; /* bytes that may still be read of it */
};

/*
 * 0, or -1 with errno: unreadable, or ENOMEM, or E2BIG: the process has written lists and tables that would take too long to read, which
 * those of real programs do not (a program with 600 libraries has 60 MB). A program has no objects without a dynamic linker, or before that has
 * run.
 */
int ml_target_objects_read(struct ml_target_objects *objects, ml_u32 pid);
void ml_target_objects_free(struct ml_target_objects *objects);

/* The object whose path ends in this name; NULL: not loaded. */
const struct ml_target_object *ml_target_objects_named(const struct ml_target_objects *objects, const char *path);

struct ml_target_symbol {
	const char *name;
	ml_u64 start, end;
};

/* Defined functions in the order of their addresses (calloc'ed, with the names behind them), NULL: none or out of memory. */
struct ml_target_symbol *ml_target_functions(ml_u32 pid, const struct ml_target_object *object, size_t *n);

/* The one of this name; NULL: none. */
const struct ml_target_symbol *ml_target_functions_find(const struct ml_target_symbol *functions, size_t n, const char *name);

/* Address of a function that the object defines, 0: none. */
ml_u64 ml_target_function(ml_u32 pid, const struct ml_target_object *object, const char *name);

/*
 * `memleakd objects PID [NAME...]`: one line for each object of the dynamic linker's list, in symbol lookup order: the address of its
 * dynamic section in hexadecimal, and those of the names that it defines as functions. Returns the exit code: 0, or 4 if the process
 * is unreadable.
 */
int ml_target_objects_print(int pid, char *const *names, int n_names);

/* Copies out of the process; 0, or -1. */
int ml_target_read(ml_u32 pid, ml_u64 address, void *into, size_t bytes);
int ml_target_write(ml_u32 pid, ml_u64 address, const void *from, size_t bytes);

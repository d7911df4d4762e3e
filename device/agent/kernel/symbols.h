/* SPDX-License-Identifier: Apache-2.0 */
/* Names of kernel addresses (/proc/kallsyms), sent for those in stacks. */
#pragma once

#include "wire.h"

struct ml_kernel_symbols;

/* NULL: out of memory. Says so in a LOG block where the kernel hides its addresses. */
struct ml_kernel_symbols *ml_kernel_symbols_read(void);

/* Whether the kernel reveals its addresses. */
bool ml_kernel_has_names(const struct ml_kernel_symbols *symbols);

/* Name of the function that the address lies in, NULL where it is not known. */
const char *ml_kernel_symbols_find(const struct ml_kernel_symbols *symbols, ml_u64 address);

/* Where a function lies. false: it is not known. */
bool ml_kernel_symbols_range(const struct ml_kernel_symbols *symbols, const char *function, ml_u64 *start, ml_u64 *end);

/* Marks the function to be written. */
void ml_kernel_symbols_use(struct ml_kernel_symbols *symbols, ml_u64 address);

/* Does a function of this name (NULL: code made by the kernel itself) lie between an event and the programs that listen to it? */
bool ml_kernel_is_tracer(const char *function);

/* Whether this function begins an interrupt: the code before it is unrelated. */
bool ml_kernel_is_interrupt(const char *function);

/* Writes new names in a KERNEL_SYMBOLS block. -1: the host is gone. */
int ml_kernel_symbols_write(struct ml_kernel_symbols *symbols);

void ml_kernel_symbols_free(struct ml_kernel_symbols *symbols);

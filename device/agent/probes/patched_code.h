/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds code that was patched since its file was mapped: by Frida, an app's own hooks, an inline hook of ours. A uprobe there runs a copy
 * of the file's instruction and continues in the midst of a longer jump; when it is removed, it writes the file's first byte back
 * (kernel/events/uprobes.c). The process would crash of either.
 */
#ifndef MEMLEAK_PATCHED_CODE_H
#define MEMLEAK_PATCHED_CODE_H

#include <stdbool.h>
#include <stddef.h>

#include "wire.h"

/* A probe in a function; both are offsets in its file. address: of the patch, 0: none. */
struct ml_probed_address {
	ml_u64 function, offset;
	ml_u64 address;
	int pid; /* of the patched process */
};

/*
 * Called before probes are placed: checks each one wherever the process maps the file, up to the end of its instruction (a patch behind
 * it does no harm). Sets addresses that are 0; those of unreadable processes stay 0. Returns whether any probe is patched.
 */
bool ml_patched_code_find(int pid, const char *path, struct ml_probed_address *probes, size_t n);

/* The same in every process but the agent. */
bool ml_patched_code_find_all(const char *path, struct ml_probed_address *probes, size_t n);

#endif

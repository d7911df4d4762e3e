/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that somebody has patched since its file was mapped: Frida, an app's own hooks, an inline hook of ours. A uprobe there
 * runs a copy of the instruction that the file has, and goes on behind it, in the midst of a longer jump; when it is taken
 * out, it writes the file's first byte back (kernel/events/uprobes.c). The process would end of either.
 */
#ifndef MEMLEAK_PATCHED_CODE_H
#define MEMLEAK_PATCHED_CODE_H

#include <stdbool.h>
#include <stddef.h>

#include "wire.h"

/* A probe at `place` of a function that begins at `function`, offsets in its file. address: where it is patched, 0 = nowhere. */
struct ml_probed_place {
	ml_u64 function, place;
	ml_u64 address;
	int pid; /* in which process */
};

/*
 * Before probes are placed: looks at each place wherever the process maps the file, up to the place's instruction: what comes
 * behind it does no harm. Fills in addresses that are 0 so far, and leaves them where the process cannot be looked at. Returns
 * whether any place is patched.
 */
bool ml_patched_code_find(int pid, const char *path, struct ml_probed_place *places, size_t n);

/* The same in every process but the agent. */
bool ml_patched_code_find_all(const char *path, struct ml_probed_place *places, size_t n);

#endif

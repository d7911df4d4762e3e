/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds code that was patched since its file was mapped: by Frida, an app's own hooks, an inline hook of ours. A uprobe there runs a copy
 * of the file's instruction and continues in the midst of a longer jump; when it is removed, it writes the file's first byte back
 * (kernel/events/uprobes.c). The process would crash of either.
 */
#pragma once

#include "agent/protocol/config.h"

#if defined(__aarch64__)
#define ML_CODE_STEP 4 /* bytes of the shortest instruction */
#else
#define ML_CODE_STEP 1
#endif

/*
 * Whether code in a process is that of its file except for breakpoints, such as those of uprobes: int3 (x86), brk (Arm ARM C6.2.45).
 * n: a multiple of ML_CODE_STEP.
 */
bool ml_code_agrees(const ml_u8 *there, const ml_u8 *in_file, size_t n);

/* A probe in a function; both are offsets in its file. address: of the patch, 0: none. */
struct ml_probed_address {
	ml_u64 function, offset;
	ml_u64 address;
	int pid; /* of the patched process */
};

/*
 * Called before probes are placed, with the file open: checks each one wherever the process maps the file, up to the end of its instruction (a patch behind
 * it does no harm). Sets addresses that are 0; those of unreadable processes stay 0. Returns whether any probe is patched.
 */
bool ml_patched_code_find(int pid, const struct ml_probed_file *file, struct ml_probed_address *probes, size_t n);

/* The same in every process but the agent. Calls `found` for each in which a probe is patched; all addresses are 0 again afterwards. */
void ml_patched_code_find_all(const struct ml_probed_file *file, struct ml_probed_address *probes, size_t n,
			      void (*found)(void *context, int pid), void *context);

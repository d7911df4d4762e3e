/* SPDX-License-Identifier: Apache-2.0 */
/* The host's plan of inline hooks, and its lines in the configuration (docs/wire-protocol.md, "The agent's input"). */
#pragma once

#include "wire.h"

#define ML_PATCHES_MAX 96
#define ML_PATCH_BYTES_MAX 32
#define ML_PATCH_KEPT_MAX 64
#define ML_PATCH_CODE_MAX 256
#define ML_PATCH_MOVES_MAX 24
#define ML_PATCH_SLOTS_MAX 160

/* A thread found at pc goes on at `to`. */
struct ml_patch_move {
	ml_u64 pc, to;
};

struct ml_patch {
	ml_u64 address, trampoline;
	ml_u32 n_kept, n_bytes, n_code, n_moves, n_returns;
	ml_u8 kept[ML_PATCH_KEPT_MAX]; /* the bytes before it, which stay; a debugger's breakpoints may be among them */
	ml_u8 expected[ML_PATCH_BYTES_MAX], patch[ML_PATCH_BYTES_MAX];
	ml_u8 code[ML_PATCH_CODE_MAX]; /* of the trampoline, which stays */
	struct ml_patch_move moves[ML_PATCH_MOVES_MAX], returns[ML_PATCH_MOVES_MAX];
};

/* A word of the shim that receives the new address of a function (memleak_hooks of preload/segment/attach_abi.h, preload/entries/pair_entries.h). */
struct ml_patch_slot {
	ml_u64 address, value;
};

struct ml_patches {
	size_t n, n_slots;
	struct ml_patch patches[ML_PATCHES_MAX];
	struct ml_patch_slot slots[ML_PATCH_SLOTS_MAX];
};

/*
 * Parses `patch ADDRESS EXPECTED PATCH TRAMPOLINE CODE MOVES RETURNS` and `slot ADDRESS VALUE`, as ml_config_lines.take.
 * context: struct ml_patches **, allocated by the first line.
 */
int ml_patch_take_line(void *context, const char *key, char *text);

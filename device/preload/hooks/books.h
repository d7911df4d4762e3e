/* SPDX-License-Identifier: Apache-2.0 */
/* The patched slots of each module and their previous values, in fixed memory, for one pass at a time. */
#pragma once

#include "preload/hooks/modules.h"
#include "preload/segment/segment.h"

#define ML_HOOK_MODULES 2048u
#define ML_HOOK_SLOTS 32768u

struct ml_hook_module {
	unsigned long base; /* base 0 and dynamic 0 = free */
	unsigned long dynamic;
	unsigned long low, high;
	ml_u64 name_hash;
	ml_u32 pass; /* that saw it last */
	int is_settled; /* a whole pass is over: its RELRO pages are mostly read-only by now, or stay writable */
	int has_runpath;
	struct ml_hooked report;
};

struct ml_hook_slot {
	unsigned long address;
	unsigned long original; /* the real function, or the module's own stub of lazy binding */
	ml_u16 module;
	ml_u16 hook;
};

struct ml_hook_books {
	ml_u32 pass;
	ml_u32 n_modules; /* includes free entries */
	ml_u32 n_slots;
	ml_u32 n_modules_without_room;
	struct ml_hook_module modules[ML_HOOK_MODULES];
	struct ml_hook_slot slots[ML_HOOK_SLOTS];
};

/*
 * The module's entry, made if there is none. Forgets a module that was loaded at the same address before. NULL: no
 * room.
 */
struct ml_hook_module *ml_hook_books_module(struct ml_hook_books *books, const struct ml_module *module, int *is_new);

/* Forgets all modules that the current pass has not seen, and their slots, which stay as they are. */
void ml_hook_books_drop_unseen(struct ml_hook_books *books);

/* Returns 0 if there is no room. */
int ml_hook_books_add(struct ml_hook_books *books, const struct ml_hook_module *module, unsigned long slot,
		      unsigned long original, unsigned int hook);

/* Reports a module to the agent, by one thread at a time. NULL: there is no session. */
void ml_hook_rows_add(const struct ml_view *view, const struct ml_hooked *row);

/* SPDX-License-Identifier: Apache-2.0 */
/* Which slots of which modules were patched, and what they held: fixed memory, for one pass at a time. */
#pragma once

#include "preload/hooks/modules.h"
#include "preload/segment/segment.h"

#define ML_HOOK_MODULES 2048u
#define ML_HOOK_SLOTS 32768u

struct ml_hook_module {
	unsigned long base; /* 0 and dynamic 0 = free */
	unsigned long dynamic;
	unsigned long low, high;
	ml_u64 name_hash;
	ml_u32 pass; /* in which it was last seen */
	int is_settled; /* read-only where it says so; or writable there for good */
	int has_runpath;
	struct ml_hooked report;
};

struct ml_hook_slot {
	unsigned long address;
	unsigned long original; /* the real function, or the module's own stub that binds at the first call */
	ml_u16 module;
	ml_u16 hook;
};

struct ml_hook_books {
	ml_u32 pass;
	ml_u32 n_modules; /* with free ones among them */
	ml_u32 n_slots;
	ml_u32 n_modules_without_room;
	struct ml_hook_module modules[ML_HOOK_MODULES];
	struct ml_hook_slot slots[ML_HOOK_SLOTS];
};

/* The module's entry; a new one where it is not known. What was loaded in its place before is forgotten. NULL: no room. */
struct ml_hook_module *ml_hook_books_module(struct ml_hook_books *books, const struct ml_module *module, int *is_new);

/* Forgets all modules that the current pass has not seen, with their slots, which are not touched. */
void ml_hook_books_drop_unseen(struct ml_hook_books *books);

/* 0 when there is no room. */
int ml_hook_books_add(struct ml_hook_books *books, const struct ml_hook_module *module, unsigned long slot,
		      unsigned long original, unsigned int hook);
void ml_hook_books_take_back(struct ml_hook_books *books);

/* Reports a module to the agent, by one thread at a time; view: NULL = there is none to report to. */
void ml_hook_rows_add(const struct ml_view *view, const struct ml_hooked *row);

/* The module that the address belongs to, or NULL. */
const struct ml_hook_module *ml_hook_books_at(const struct ml_hook_books *books, unsigned long address);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of --pairs, which modules call through slots, or whose code is patched: each has an entry of its own, which tells
 * the recorder what a call acquires or releases, by the rule of the session, and calls the function itself.
 */
#pragma once

#include "preload/segment/segment.h"

/* Takes over the session's rules. Nothing is recorded before functions are bound to them. */
void ml_pairs_begin(const struct ml_view *view);

/* The same where the agent patches functions, and has said where they were moved to (pair_entries.h). */
void ml_pairs_begin_moved(const struct ml_view *view);

/* From here on calls only forward. */
void ml_pairs_end(void);

/* The function at `teller` says how many bytes a handle of the rule has. Before the rule is bound. */
void ml_pairs_size_by(ml_u32 rule, unsigned long size_function);

/*
 * The entry that stands in for the function at `real`, whose rule is number `rule`; 0: there is none left, none for this
 * architecture, or nobody who tells its sizes. An entry leads to one function for good, since somebody may have kept its address.
 */
unsigned long ml_pairs_bind(ml_u32 rule, unsigned long real);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of --pairs, called through slots or patched. Each has its own entry, which reports acquired and released
 * handles to the recorder by the session's rules and calls the function. device/bpf/pairs.bpf.h applies the same rules
 * by helpers that may fail; there the verifier rules out sharing the code.
 */
#pragma once

#include "preload/segment/segment.h"

/* Copies the session's rules. Nothing is recorded before functions are bound to them. */
void ml_pairs_begin(const struct ml_view *view);

/* For functions that the agent patches and has moved (pair_entries.h). */
void ml_pairs_begin_moved(const struct ml_view *view);

/* From here on calls are only forwarded. */
void ml_pairs_end(void);

/* `size_function` returns the size of a handle of the rule. To be set before the rule is bound. */
void ml_pairs_size_by(ml_u32 rule, unsigned long size_function);

/*
 * The entry for the function at `real` under this rule. 0: none is free, the architecture has none, or the rule's size
 * function is missing. An entry leads to one function for good, since its address may have been copied.
 */
unsigned long ml_pairs_bind(ml_u32 rule, unsigned long real);

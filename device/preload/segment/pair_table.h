/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of --pairs, shared by agent and shim. */
#pragma once

#include "pair_rule.h"

#define ML_PAIR_NAME_BYTES 120u
#define ML_PAIR_NAMES 384u

/* The name of a function that is called through slots, or of a rule's size function. */
struct ml_pair_name {
	ml_u32 function; /* index of its rule */
	ml_u32 is_size_function; /* 1: the rule's size function */
	char name[ML_PAIR_NAME_BYTES];
};

/* Written by the agent before the process continues. */
struct ml_pair_table {
	ml_u32 n_rules; /* 0 = the heap alone */
	ml_u32 n_names;
	struct ml_pair rules[ML_PAIRS];
	struct ml_pair_name names[ML_PAIR_NAMES];
};

#define ML_PAIR_PENDING 8u

/* An acquiring call in progress. */
struct ml_pair_pending {
	ml_u64 stack_pointer; /* after its return */
	ml_u32 family;
};

/* SPDX-License-Identifier: Apache-2.0 */
/* What agent and shim share of functions of --pairs. */
#pragma once

#include "pair_rule.h"

#define ML_PAIR_NAME_BYTES 120u
#define ML_PAIR_NAMES 192u

/* By which a function is called through slots, or that of one that tells sizes. */
struct ml_pair_name {
	ml_u32 function; /* its rule's place */
	ml_u32 is_size_function; /* 1: of the handles of that rule */
	char name[ML_PAIR_NAME_BYTES];
};

/* Written by the agent before the process goes on. */
struct ml_pair_table {
	ml_u32 n_rules; /* 0 = the heap alone */
	ml_u32 n_names;
	struct ml_pair rules[ML_PAIRS];
	struct ml_pair_name names[ML_PAIR_NAMES];
};

#define ML_PAIR_PENDING 8u

/* A call that acquires and has not returned. */
struct ml_pair_pending {
	ml_u64 stack_pointer; /* when it has returned */
	ml_u32 family;
};

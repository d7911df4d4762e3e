/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Blocks in the kernel's hash map: those without room in the levels, and all on kernels without levels. */
#pragma once

#include "maps.bpf.h"

ML_MAP(HASH, overflow, struct ml_bpf_address, struct ml_bpf_block, 1u << 19, BPF_F_NO_PREALLOC);

static __noinline bool ml_claim_overflow(ml_u64 address, struct ml_bpf_block *block)
{
	struct ml_bpf_address where = { .address = address };
	struct ml_bpf_block *found;

	if (!block)
		return false;
	where.process = block->process;
	found = bpf_map_lookup_elem(&overflow, &where);
	if (!found)
		return false;
	*block = *found;
	return bpf_map_delete_elem(&overflow, &where) == 0;
}

static __noinline bool ml_put_overflow(ml_u64 address, const struct ml_bpf_block *block)
{
	struct ml_bpf_address where = { .address = address };
	struct ml_bpf_block copy; /* 6.1 and older accept no memory of a global function's argument as a value */
	struct ml_bpf_code *shared = ml_code();

	if (!block || !shared)
		return false;
	where.process = block->process;
	shared->has_overflow = 1;
	copy = *block;
	return bpf_map_update_elem(&overflow, &where, &copy, BPF_NOEXIST) == 0;
}

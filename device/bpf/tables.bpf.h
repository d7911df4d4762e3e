/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Our own tables, which need atomic operations that return a value (kernel commit 5ffa25502b5a, in v5.12), or the
 * tables of older kernels.
 */
#ifdef ML_OLD_KERNEL
#include "old_tables.bpf.h"
#else
#include "key_table.bpf.h"
#include "live_table.bpf.h"
#include "threads.bpf.h"
#endif

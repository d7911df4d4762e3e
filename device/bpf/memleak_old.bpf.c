// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The probes for kernels without the BPF ring buffer or without atomic operations that return a value. */
#define ML_OLD_KERNEL 1
#include "memleak.bpf.c"

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* For kernels without atomic operations that return a value (before v5.12): threads are in the kernel's hash map. */
#define ML_SNOOP_OLD 1
#include "bpf/snoop/snoop.bpf.c"

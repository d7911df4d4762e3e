/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a seccomp filter before the program installs it, and records which system calls it leaves to the shim (sandbox.h). */
#pragma once

/*
 * To be called before a filter is installed. program: the program's struct sock_fprog, which may be unreadable: then the kernel
 * refuses it too.
 */
void ml_sandbox_expect_filter(const void *program);

/* … before SECCOMP_MODE_STRICT, which allows to read, to write and to exit. */
void ml_sandbox_expect_strict(void);

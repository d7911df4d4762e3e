/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brings a library into a running process and calls functions of it, by ptrace: on a thread of the process that holds no
 * lock which that could wait for. To be done by a process of its own (inject_keeper.h): what ends it frees the threads.
 */
#ifndef MEMLEAK_INJECT_H
#define MEMLEAK_INJECT_H

#include "agent/inject/checks.h"
#include "agent/protocol/stop_times.h"
#include "wire.h"

struct ml_patches;

struct ml_injection {
	pid_t pid;
	const char *library;  /* path as we see it */
	const char *function; /* int (*)(const char *) that the library exports */
	const char *argument; /* NULL: none */
	const struct ml_patches *patches; /* inline hooks that go with it (inline_hooks.h); NULL: none */
};

struct ml_injected {
	ml_u64 result; /* what the function returned */
	ml_u32 n_threads;
	ml_u32 n_looks; /* how often all threads were stopped until one was found */
	struct ml_stop_times stops;
	struct ml_refusal refusal;
};

/* 0, or -1 with the refusal: the process runs on as it was. */
int ml_inject(const struct ml_injection *injection, struct ml_injected *injected);

#endif

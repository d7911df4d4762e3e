/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads the shim into a running process and calls its functions by ptrace: on a thread of that process that holds no lock which the calls
 * need. In come a pid, a library and a call, out come the result and the stop times, or a refusal. Runs in a process of its own (keeper.h):
 * when it ends, the kernel detaches all threads.
 */
#pragma once

#include "agent/inject/checks.h"
#include "agent/protocol/stop_times.h"
#include "wire.h"

struct ml_patches;

struct ml_injection {
	pid_t pid;
	const char *library;  /* path as the agent sees it */
	const char *function; /* int (*)(const char *) that the library exports */
	const char *argument; /* NULL: none */
	const struct ml_patches *patches; /* inline hooks to place with it (patch.h); NULL: none */
};

struct ml_injected {
	ml_u64 result; /* of the function */
	ml_u32 n_threads;
	ml_u32 n_attempts; /* how often all threads were stopped to find one */
	struct ml_stop_times stops;
	struct ml_refusal refusal;
};

/* 0, or -1 with the refusal: the process runs on unchanged. */
int ml_inject(const struct ml_injection *injection, struct ml_injected *injected);

/*
 * `memleakd inject PID LIBRARY FUNCTION [ARGUMENT]`: loads the library into the process, calls the function, and prints
 * `RESULT THREADS ATTEMPTS` and the stops. Returns the exit code: 0, or 4 with the reason on standard error.
 */
int ml_inject_command(char *const *words, int n_words);

/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the thread that may call dlopen(): its stack shows no lock of the allocator or the dynamic linker, and no signal handler. */
#pragma once

#include "agent/ptrace/state.h"
#include "agent/process/target_objects.h"

struct ml_inject_choice;

/* Reads the loaded objects. NULL: out of memory. */
struct ml_inject_choice *ml_inject_choice_create(const struct ml_target_objects *objects);
void ml_inject_choice_destroy(struct ml_inject_choice *places);

/* Drops cached memory and mappings of an earlier stop. Called after each stop. */
void ml_inject_choice_renew(struct ml_inject_choice *places);

enum ml_inject_verdict {
	ML_THREAD_GOOD,
	ML_THREAD_ALLOCATOR, /* in the allocator */
	ML_THREAD_LOADER, /* in the dynamic linker, fork() or the like */
	ML_THREAD_LOADING, /* suitable, but another thread has the dynamic linker's lock */
	ML_THREAD_SIGNAL, /* in a signal handler */
	ML_THREAD_STACK, /* on a stack that is not the thread's own, or has too little room */
	ML_THREAD_SECTION, /* in a restartable sequence (rseq(2)): the kernel could not abort it */
	ML_THREAD_SHADOW_STACK,
};

/* Of a stopped thread. */
enum ml_inject_verdict ml_inject_choice_judge(struct ml_inject_choice *places, pid_t tid, const ml_ptrace_registers *registers);

/* Whether a stopped thread runs a constructor of a library that it loads: dlopen() would wait for it. */
bool ml_inject_choice_is_loading(struct ml_inject_choice *places, const ml_ptrace_registers *registers);

/* "in the allocator", …: part of the refusal. */
const char *ml_inject_verdict_text(enum ml_inject_verdict verdict);

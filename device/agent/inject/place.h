/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which thread of a process may be made to call dlopen(): one that holds no lock of the allocator's or the dynamic linker's,
 * which its stack tells, and is in no signal handler.
 */
#ifndef MEMLEAK_INJECT_PLACE_H
#define MEMLEAK_INJECT_PLACE_H

#include "agent/ptrace/state.h"
#include "agent/process/target_objects.h"

struct ml_inject_places;

/* Reads what is loaded. NULL: out of memory. */
struct ml_inject_places *ml_inject_places_create(const struct ml_target_objects *objects);
void ml_inject_places_destroy(struct ml_inject_places *places);

/* What is kept of memory and mappings is of an earlier stop: before each look at stopped threads. */
void ml_inject_places_renew(struct ml_inject_places *places);

enum ml_inject_verdict {
	ML_PLACE_GOOD,
	ML_PLACE_ALLOCATOR,    /* in the allocator */
	ML_PLACE_LOADER,       /* in the dynamic linker, fork() or the like */
	ML_PLACE_LOADING,      /* could be borrowed, but another thread has the dynamic linker's lock */
	ML_PLACE_SIGNAL,       /* in a signal handler */
	ML_PLACE_STACK,        /* on a stack that is not the thread's own, or a small one */
	ML_PLACE_SECTION,      /* in a restartable sequence (rseq(2)): the kernel could not abort it */
	ML_PLACE_SHADOW_STACK,
};

/* Of a stopped thread. */
enum ml_inject_verdict ml_inject_place_judge(struct ml_inject_places *places, pid_t tid,
					     const ml_ptrace_registers *registers);

/* Another stopped thread, as the constructor of a library that it loads, is called by the dynamic linker: dlopen() would wait for it. */
bool ml_inject_place_is_loading(struct ml_inject_places *places, const ml_ptrace_registers *registers);

/* "in the allocator", …: for the reason why none was found. */
const char *ml_inject_verdict_text(enum ml_inject_verdict verdict);

#endif

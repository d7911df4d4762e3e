// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/shim/last_calls.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/process/thread_states.h"

#define TIMEOUT_NS 1000000000ull
#define STEP_US 500
#define WITHOUT_BARRIER_US 10000 /* far longer than a store takes to become visible */

/* Pairs with the barrier-free start of record() in ml_recorder. The kernel has it since 4.3, except with nohz_full. */
static void pass_barrier(void)
{
	if (syscall(__NR_membarrier, MEMBARRIER_CMD_SHARED, 0))
		usleep(WITHOUT_BARRIER_US);
}

/* Slot 0 is shared by threads without one of their own; its state is that of the last of them. */
static bool is_any_recording(const struct ml_preload_target *target)
{
	const struct ml_view *view = &target->view;

	for (ml_u32 i = 1; i < view->settings.n_threads; i++)
		if (__atomic_load_n(&view->owners[i], __ATOMIC_RELAXED) &&
		    __atomic_load_n(&view->threads[i].is_recording, __ATOMIC_ACQUIRE))
			return !ml_process_has_ended(target->pid, target->pidfd);
	return false;
}

void ml_preload_last_calls(struct ml_preload_processes *processes, void (*drain)(void *context), void *context)
{
	ml_u64 until_ns = ml_clock_ns() + TIMEOUT_NS;

	ml_preload_processes_end(processes, ML_SESSION_OVER);
	pass_barrier();
	for (size_t i = 0; i < processes->n_targets; i++)
		while (is_any_recording(processes->targets[i]) && ml_clock_ns() < until_ns) {
			drain(context);
			usleep(STEP_US);
		}
}

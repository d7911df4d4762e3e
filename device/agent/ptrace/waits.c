// SPDX-License-Identifier: Apache-2.0
#include "agent/ptrace/waits.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/process/proc_file.h"
#include "agent/process/thread_states.h"
#include "agent/protocol/blocks.h"
#include "agent/ptrace/repeat.h"

/*
 * When the thread's time was last counted, by its processor's clock. A line is "se.exec_start   :   1596481.840055" (kernel/sched/debug.c:
 * proc_sched_show_task()). 0: unknown.
 */
static ml_u64 read_clock_ns(pid_t pid, pid_t tid)
{
	char name[32], text[4096];
	const char *line, *colon;
	unsigned long long ms, ns;

	snprintf(name, sizeof(name), "task/%d/sched", tid);
	if (ml_proc_read(pid, name, text, sizeof(text)) < 0)
		return 0;
	line = strstr(text, "\nse.exec_start");
	colon = line ? strchr(line, ':') : NULL;
	return colon && sscanf(colon + 1, "%llu.%6llu", &ms, &ns) == 2 ? ms * 1000000 + ns : 0;
}

static ml_u64 read_n_switches(pid_t pid, pid_t tid)
{
	char name[32], status[4096];

	snprintf(name, sizeof(name), "task/%d/status", tid);
	return ml_proc_read(pid, name, status, sizeof(status)) < 0 ? 0 :
								     ml_proc_field(status, "voluntary_ctxt_switches:\t", 10);
}

/* The system call in which the thread sleeps: number, arguments, stack pointer and address behind it. False: it runs. */
static bool read_call(pid_t pid, struct ml_ptrace_wait *wait)
{
	ml_u64 words[9];
	char name[32], text[256], *at = text, *end;

	snprintf(name, sizeof(name), "task/%d/syscall", wait->tid);
	if (ml_proc_read(pid, name, text, sizeof(text)) < 0)
		return false;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++, at = end) {
		words[i] = strtoull(at, &end, 0);
		if (end == at) /* "running" */
			return false;
	}
	wait->number = words[0];
	memcpy(wait->arguments, words + 1, sizeof(wait->arguments));
	wait->stack_pointer = words[7];
	wait->pc = words[8];
	return true;
}

/*
 * The clock of a processor's scheduler leaves out what interrupts took there, so it is compared with ours on the same processor. 0: the
 * agent may not run there.
 */
static ml_u64 find_offset(ml_u32 processor)
{
	cpu_set_t before, one;
	ml_u64 now_ns, clock_ns;

	CPU_ZERO(&one);
	CPU_SET(processor, &one);
	if (sched_getaffinity(0, sizeof(before), &before) || sched_setaffinity(0, sizeof(one), &one))
		return 0;
	sched_yield(); /* counts our time up to now */
	clock_ns = read_clock_ns(getpid(), gettid());
	now_ns = ml_clock_ns();
	sched_setaffinity(0, sizeof(before), &before);
	return clock_ns ? now_ns - clock_ns : 0;
}

struct noting {
	struct ml_ptrace_waits *waits;
	pid_t pid;
	ml_u64 offsets[CPU_SETSIZE]; /* of the clocks of processors that were compared */
};

/* When a wait with this time limit ends; 0: unknown. */
static ml_u64 find_end(struct noting *noting, pid_t tid, ml_u64 limit_ms)
{
	ml_u32 processor = ml_thread_processor((ml_u32)noting->pid, (ml_u32)tid);
	ml_u64 asleep_ns = read_clock_ns(noting->pid, tid), *offset;

	if (!limit_ms || processor >= CPU_SETSIZE || !asleep_ns)
		return 0;
	offset = &noting->offsets[processor];
	if (!*offset)
		*offset = find_offset(processor);
	return *offset ? asleep_ns + *offset + limit_ms * 1000000 : 0;
}

static bool note_if_needed(void *context, int tid)
{
	struct noting *noting = context;
	struct ml_ptrace_wait *wait = &noting->waits->waits[noting->waits->n];
	ml_u64 limit_ms;

	*wait = (struct ml_ptrace_wait){ .tid = tid, .n_switches = read_n_switches(noting->pid, tid) };
	if (!read_call(noting->pid, wait) || !ml_ptrace_is_noted(tid, wait, &limit_ms))
		return false;
	wait->end_ns = find_end(noting, tid, limit_ms);
	noting->waits->n += wait->n_switches == read_n_switches(noting->pid, tid); /* else it is another by now */
	return noting->waits->n == ML_PTRACE_WAITS_MAX;
}

void ml_ptrace_waits_note(struct ml_ptrace_waits *waits, pid_t pid)
{
	static struct noting noting;

	waits->n = 0;
	noting = (struct noting){ .waits = waits, .pid = pid };
	ml_proc_find(pid, "task", note_if_needed, &noting);
}

/* Stopped in the same wait, the thread has left its processor once more: for the stop. */
const struct ml_ptrace_wait *ml_ptrace_waits_find(const struct ml_ptrace_waits *waits, pid_t pid, pid_t tid)
{
	for (size_t i = 0; i < waits->n; i++)
		if (waits->waits[i].tid == tid)
			return read_n_switches(pid, tid) == waits->waits[i].n_switches + 1 ? &waits->waits[i] : NULL;
	return NULL;
}

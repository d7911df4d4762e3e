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
#include "agent/ptrace/state.h"

struct schedule {
	ml_u64 clock_ns; /* of its processor, when the thread's time was last counted */
	ml_u64 n_switches;
};

/* A line is "se.exec_start   :   1596481.840055" (kernel/sched/debug.c: proc_sched_show_task()). NULL: it is missing. */
static const char *find_value(const char *text, const char *name)
{
	const char *line = strstr(text, name), *colon = line ? strchr(line, ':') : NULL;

	return colon ? colon + 1 : NULL;
}

static int read_schedule(pid_t pid, pid_t tid, struct schedule *schedule)
{
	const char *clock, *switches;
	char name[32], text[4096];
	unsigned long long ms, ns;

	snprintf(name, sizeof(name), "task/%d/sched", tid);
	if (ml_proc_read(pid, name, text, sizeof(text)) < 0)
		return -1;
	clock = find_value(text, "\nse.exec_start");
	switches = find_value(text, "\nnr_voluntary_switches");
	if (!clock || !switches || sscanf(clock, "%llu.%6llu", &ms, &ns) != 2)
		return -1;
	*schedule = (struct schedule){ ms * 1000000 + ns, strtoull(switches, NULL, 10) };
	return 0;
}

/* The time limit of the system call in which the thread sleeps; 0: none that a repeated call could be given. */
static ml_u64 read_limit_ms(pid_t pid, pid_t tid)
{
	ml_u64 words[7] = { 0 }; /* number and arguments */
	char name[32], text[256], *at = text, *end;

	snprintf(name, sizeof(name), "task/%d/syscall", tid);
	if (ml_proc_read(pid, name, text, sizeof(text)) < 0)
		return 0;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++, at = end) {
		words[i] = strtoull(at, &end, 0);
		if (end == at) /* "running" */
			return 0;
	}
	return ml_ptrace_limit_ms(tid, words[0], words + 1);
}

/*
 * The clock of a processor's scheduler leaves out what interrupts took there, so it is compared with ours on the same processor. 0: the
 * agent may not run there.
 */
static ml_u64 find_offset(ml_u32 processor)
{
	cpu_set_t before, one;
	struct schedule own;
	ml_u64 now_ns = 0;

	CPU_ZERO(&one);
	CPU_SET(processor, &one);
	if (sched_getaffinity(0, sizeof(before), &before) || sched_setaffinity(0, sizeof(one), &one))
		return 0;
	sched_yield(); /* counts our time up to now */
	if (!read_schedule(getpid(), gettid(), &own))
		now_ns = ml_clock_ns();
	sched_setaffinity(0, sizeof(before), &before);
	return now_ns ? now_ns - own.clock_ns : 0;
}

struct noting {
	struct ml_ptrace_waits *waits;
	pid_t pid;
	ml_u64 offsets[CPU_SETSIZE]; /* of the clocks of processors that were compared */
};

static bool note_if_limited(void *context, int tid)
{
	struct noting *noting = context;
	ml_u64 limit_ms = read_limit_ms(noting->pid, tid), *offset;
	ml_u32 processor = ml_thread_processor((ml_u32)noting->pid, (ml_u32)tid);
	struct schedule asleep;

	if (!limit_ms || processor >= CPU_SETSIZE || read_schedule(noting->pid, tid, &asleep))
		return false;
	offset = &noting->offsets[processor];
	if (!*offset)
		*offset = find_offset(processor);
	if (*offset)
		noting->waits->waits[noting->waits->n++] =
			(struct ml_ptrace_wait){ tid, asleep.clock_ns + *offset + limit_ms * 1000000, asleep.n_switches };
	return noting->waits->n == ML_PTRACE_WAITS_MAX;
}

void ml_ptrace_waits_note(struct ml_ptrace_waits *waits, pid_t pid)
{
	static struct noting noting;

	waits->n = 0;
	noting = (struct noting){ .waits = waits, .pid = pid };
	ml_proc_find(pid, "task", note_if_limited, &noting);
}

/* Stopped in the same wait, the thread has left its processor once more: for the stop. */
ml_u64 ml_ptrace_waits_end(const struct ml_ptrace_waits *waits, pid_t pid, pid_t tid)
{
	struct schedule stopped;

	for (size_t i = 0; i < waits->n; i++)
		if (waits->waits[i].tid == tid)
			return !read_schedule(pid, tid, &stopped) && stopped.n_switches == waits->waits[i].n_switches + 1 ?
				       waits->waits[i].end_ns :
				       0;
	return 0;
}

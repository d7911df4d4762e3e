// SPDX-License-Identifier: Apache-2.0
#include "agent/ptrace/threads.h"

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/proc_file.h"
#include "agent/process/target_objects.h"
#include "agent/process/thread_states.h"
#include "agent/protocol/blocks.h"
#include "agent/protocol/extend.h"
#include "agent/ptrace/repeat.h"
#include "agent/ptrace/state.h"

#define ROUNDS_MAX 64
#define THREADS_MAX 65536
#define SPINS 32 /* waits that end within some microseconds need no sleep */
#define NAP_US 20
#define LEAST_PATIENCE_NS 5000000ull
#define ENTRY_PATIENCE_NS 10000000000ull
#define SYSTEM_CALL_STOP (SIGTRAP | 0x80) /* PTRACE_O_TRACESYSGOOD */

static struct ml_ptrace_thread *find(const struct ml_ptrace_threads *threads, pid_t tid)
{
	for (size_t i = threads->n; i-- > 0;)
		if (threads->threads[i].tid == tid)
			return &threads->threads[i];
	return NULL;
}

static int add(struct ml_ptrace_threads *threads, pid_t tid)
{
	errno = ENOMEM;
	if (threads->n == THREADS_MAX || !ML_EXTEND(threads->threads, threads->n, threads->room))
		return -1;
	threads->threads[threads->n++] = (struct ml_ptrace_thread){ .tid = tid, .asked_ns = ml_clock_ns() };
	return 0;
}

/* Since an earlier stop of this process that was late (in vfork()). Only a stop makes it possible to detach the thread. */
static bool is_seized_by_us(const struct ml_ptrace_threads *threads, pid_t tid)
{
	char name[32], status[4096];

	snprintf(name, sizeof(name), "task/%d/status", tid);
	ml_proc_read(threads->pid, name, status, sizeof(status));
	return (pid_t)ml_proc_field(status, "TracerPid:\t", 10) == gettid();
}

/* 1: seized, 0: it has ended meanwhile, -1: errno. */
static int seize(struct ml_ptrace_threads *threads, pid_t tid)
{
	if (ptrace(PTRACE_SEIZE, tid, NULL, PTRACE_O_TRACESYSGOOD)) {
		int error = errno;

		if (error == EPERM && is_seized_by_us(threads, tid))
			return add(threads, tid) ? -1 : 1;
		if (error == ESRCH || ml_thread_has_ended((ml_u32)threads->pid, (ml_u32)tid))
			return 0;
		errno = error;
		return -1;
	}
	if (add(threads, tid))
		return -1;
	return ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) && errno != ESRCH ? -1 : 1;
}

struct seizing {
	struct ml_ptrace_threads *threads;
	int n_new; /* -1: errno */
};

static bool seize_if_new(void *context, int tid)
{
	struct seizing *seizing = context;
	int seized = find(seizing->threads, tid) ? 0 : seize(seizing->threads, tid);

	seizing->n_new = seized < 0 ? -1 : seizing->n_new + seized;
	return seized < 0;
}

/* Seizes all threads that are not seized yet. Returns their number, or -1 with errno. */
static int seize_new(struct ml_ptrace_threads *threads)
{
	struct seizing seizing = { threads, 0 };

	if (ml_proc_find(threads->pid, "task", seize_if_new, &seizing) != ML_PROC_GONE)
		return seizing.n_new;
	errno = ESRCH;
	return -1;
}

int ml_ptrace_wait(pid_t tid, ml_u64 deadline_ns, int *status)
{
	for (int i = 0;; i++) {
		pid_t found = waitpid(tid, status, __WALL | WNOHANG);

		if (found == tid)
			return WIFSTOPPED(*status) ? 1 : -1;
		if (found < 0 && errno != EINTR)
			return -1;
		if (ml_clock_ns() > deadline_ns)
			return 0;
		if (i > SPINS)
			usleep(NAP_US);
	}
}

/* Keeps only threads of earlier stops that have not reached their stop yet. */
static void forget_settled(struct ml_ptrace_threads *threads)
{
	size_t n = 0;

	for (size_t i = 0; i < threads->n; i++)
		if (!threads->threads[i].is_stopped && !threads->threads[i].is_gone && threads->threads[i].is_late)
			threads->threads[n++] = threads->threads[i];
	threads->n = n;
}

/* At a stop for an earlier signal the thread continues with that signal, into the requested stop behind it. */
static void take_stop(const struct ml_ptrace_threads *threads, struct ml_ptrace_thread *thread, int status)
{
	if (status >> 16 == PTRACE_EVENT_STOP) {
		const struct ml_ptrace_wait *wait;
		unsigned long message;

		ptrace(PTRACE_GETEVENTMSG, thread->tid, NULL, &message); /* returns once it has left its processor */
		wait = ml_ptrace_waits_find(&threads->waits, threads->pid, thread->tid);
		thread->is_stopped = true;
		thread->wait = wait ? *wait : (struct ml_ptrace_wait){ .tid = 0 };
		thread->is_group_stopped = WSTOPSIG(status) != SIGTRAP;
	} else {
		ptrace(PTRACE_CONT, thread->tid, NULL, (void *)(long)(status >> 16 ? 0 : WSTOPSIG(status)));
	}
}

/* Waits for a thread that needs a processor, but not for one in an uninterruptible sleep (vfork(), a disk). */
static void await_stop(const struct ml_ptrace_threads *threads, struct ml_ptrace_thread *thread, ml_u64 deadline_ns)
{
	int status, found;

	while (!thread->is_stopped && !thread->is_gone) {
		found = ml_ptrace_wait(thread->tid, ml_clock_ns() + (thread->is_late ? 0 : LEAST_PATIENCE_NS), &status);
		thread->is_late = found == 0 && (ml_thread_letter((ml_u32)threads->pid, (ml_u32)thread->tid) == 'D' ||
						 ml_clock_ns() > deadline_ns);
		thread->is_gone = found < 0;
		if (found > 0)
			take_stop(threads, thread, status);
		if (thread->is_late)
			return;
	}
}

int ml_ptrace_stop_all(struct ml_ptrace_threads *threads, pid_t pid, ml_u32 patience_ms)
{
	ml_u64 deadline_ns = ml_clock_ns() + patience_ms * 1000000ull;
	size_t n_awaited = 0;
	bool is_any_left = false, is_group_stopped = false;

	threads->pid = pid;
	threads->longest_stop_ns = 0;
	forget_settled(threads);
	ml_ptrace_waits_note(&threads->waits, pid);
	/* stopped threads create no others */
	for (int round = 0;; round++) {
		int n_new = seize_new(threads);
		int error = n_new < 0 ? errno : round == ROUNDS_MAX ? ETIMEDOUT : 0;

		if (!n_new && n_awaited == threads->n)
			break;
		for (; n_awaited < threads->n; n_awaited++)
			await_stop(threads, &threads->threads[n_awaited], deadline_ns);
		errno = error;
		if (error)
			return -1;
	}
	for (size_t i = 0; i < threads->n; i++) {
		is_any_left |= !threads->threads[i].is_gone;
		is_group_stopped |= threads->threads[i].is_group_stopped;
	}
	errno = is_any_left ? EBUSY : ESRCH;
	return is_any_left && !is_group_stopped ? 0 : -1;
}

/*
 * Lets the thread run to the entry of the call that it repeats: a handler before it would overwrite the limit below the stack. Returns
 * the signal of such a handler, and the wait has ended then: `interrupted`.
 */
static int enter_call(pid_t tid, const ml_ptrace_registers *interrupted)
{
	ml_u64 deadline_ns = ml_clock_ns() + ENTRY_PATIENCE_NS;
	int status = 0, signal = 0;

	do {
		if (ptrace(PTRACE_SYSCALL, tid, NULL, (void *)(long)signal) || ml_ptrace_wait(tid, deadline_ns, &status) <= 0 ||
		    WSTOPSIG(status) == SYSTEM_CALL_STOP)
			return 0;
		signal = status >> 16 ? 0 : WSTOPSIG(status);
	} while (signal && ml_ptrace_ignores_signal(tid, signal));
	ml_ptrace_write_set(tid, NT_PRSTATUS, interrupted, sizeof(*interrupted));
	return signal;
}

/* Hides the stop from the program as far as possible. Returns a signal with which the thread is to go on, or 0. */
static int repeat_wait(const struct ml_ptrace_thread *thread)
{
	ml_ptrace_registers interrupted, registers;
	struct ml_ptrace_limit limit;
	const struct ml_ptrace_wait *wait = thread->wait.tid ? &thread->wait : NULL;
	ml_u64 now_ns = ml_clock_ns(), end_ns = thread->wait.end_ns > now_ns ? thread->wait.end_ns : now_ns;
	long left_ms = thread->wait.end_ns ? (long)((end_ns - now_ns + 999999) / 1000000) : -1;

	if (ml_ptrace_read_set(thread->tid, NT_PRSTATUS, &interrupted, sizeof(interrupted)) != (ssize_t)sizeof(interrupted))
		return 0;
	registers = interrupted;
	if (!ml_ptrace_repeat_wait(&registers, wait, left_ms, &limit) || ml_ptrace_has_pending_signal(thread->tid))
		return 0;
	if (limit.address && ml_target_write((ml_u32)thread->tid, limit.address, limit.time, sizeof(limit.time))) {
		registers = interrupted; /* it begins anew */
		ml_ptrace_repeat_wait(&registers, wait, -1, &limit);
	}
	ml_ptrace_write_set(thread->tid, NT_PRSTATUS, &registers, sizeof(registers));
	return limit.address ? enter_call(thread->tid, &interrupted) : 0;
}

void ml_ptrace_let_go(struct ml_ptrace_threads *threads, struct ml_ptrace_thread *thread)
{
	ml_u64 stood_ns;

	if (!thread->is_stopped)
		return;
	if (ptrace(PTRACE_DETACH, thread->tid, NULL, (void *)(long)repeat_wait(thread)))
		return;
	thread->is_stopped = false;
	stood_ns = ml_clock_ns() - thread->asked_ns;
	if (stood_ns > threads->longest_stop_ns)
		threads->longest_stop_ns = stood_ns;
}

void ml_ptrace_let_others_go(struct ml_ptrace_threads *threads, const struct ml_ptrace_thread *kept)
{
	for (size_t i = 0; i < threads->n; i++)
		if (&threads->threads[i] != kept)
			ml_ptrace_let_go(threads, &threads->threads[i]);
}

void ml_ptrace_free(struct ml_ptrace_threads *threads)
{
	free(threads->threads);
	*threads = (struct ml_ptrace_threads){ 0 };
}

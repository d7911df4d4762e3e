// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/ptrace/threads.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

#include "agent/protocol/blocks.h"
#include "agent/ptrace/state.h"

#define ROUNDS_MAX 64
#define THREADS_MAX 65536
#define SPINS 32 /* waits that end within some microseconds need no sleep */
#define NAP_NS 20000
#define LEAST_PATIENCE_NS 5000000ull

static struct ml_ptrace_thread *find(const struct ml_ptrace_threads *threads, pid_t tid)
{
	for (size_t i = threads->n; i-- > 0;)
		if (threads->threads[i].tid == tid)
			return &threads->threads[i];
	return NULL;
}

static int add(struct ml_ptrace_threads *threads, pid_t tid)
{
	if (threads->n == threads->room) {
		size_t room = threads->room ? 2 * threads->room : 64;
		void *more = room <= THREADS_MAX ? realloc(threads->threads, room * sizeof(*threads->threads)) : NULL;

		if (!more) {
			errno = ENOMEM;
			return -1;
		}
		threads->threads = more;
		threads->room = room;
	}
	threads->threads[threads->n++] = (struct ml_ptrace_thread){ .tid = tid, .asked_ns = ml_clock_ns() };
	return 0;
}

/* As /proc has it: R, S, D, Z, …; X: it is not there. */
static char state_of(const struct ml_ptrace_threads *threads, pid_t tid)
{
	char path[64], state = 'X';
	FILE *stat;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", threads->pid, tid);
	stat = fopen(path, "re");
	if (!stat)
		return 'X';
	if (fscanf(stat, "%*d (%*[^)]) %c", &state) != 1) /* a name with ) in it: taken for alive */
		state = 'R';
	fclose(stat);
	return state;
}

/* The first thread stays in /proc when it has ended before the others. */
static bool has_ended(const struct ml_ptrace_threads *threads, pid_t tid)
{
	char state = state_of(threads, tid);

	return state == 'Z' || state == 'X';
}

/* Since an earlier stop of this process, for which it was late (in vfork()): only the stop would let it be detached. */
static bool is_seized_by_us(const struct ml_ptrace_threads *threads, pid_t tid)
{
	char path[64], line[128];
	int tracer = 0;
	FILE *status;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/status", threads->pid, tid);
	status = fopen(path, "re");
	while (status && !tracer && fgets(line, sizeof(line), status))
		sscanf(line, "TracerPid: %d", &tracer);
	if (status)
		fclose(status);
	return tracer == gettid();
}

/* 1: taken, 0: it has ended meanwhile. */
static int seize(struct ml_ptrace_threads *threads, pid_t tid)
{
	if (ptrace(PTRACE_SEIZE, tid, NULL, PTRACE_O_TRACESYSGOOD)) {
		int error = errno;

		if (error == EPERM && is_seized_by_us(threads, tid))
			return add(threads, tid) ? -1 : 1;
		if (error == ESRCH || has_ended(threads, tid))
			return 0;
		errno = error;
		return -1;
	}
	if (add(threads, tid))
		return -1;
	return ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) && errno != ESRCH ? -1 : 1;
}

/* All that are not ours yet. Returns how many there were, -1: errno. */
static int seize_new(struct ml_ptrace_threads *threads)
{
	char path[32];
	struct dirent *entry;
	int n_new = 0, taken;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", threads->pid);
	tasks = opendir(path);
	if (!tasks) {
		errno = ESRCH;
		return -1;
	}
	while (n_new >= 0 && (entry = readdir(tasks))) {
		pid_t tid = (pid_t)atoi(entry->d_name);

		if (tid <= 0 || find(threads, tid))
			continue;
		taken = seize(threads, tid);
		n_new = taken < 0 ? -1 : n_new + taken;
	}
	closedir(tasks);
	return n_new;
}

int ml_ptrace_wait(pid_t tid, ml_u64 deadline_ns, int *status)
{
	struct timespec nap = { 0, NAP_NS };

	for (int i = 0;; i++) {
		pid_t found = waitpid(tid, status, __WALL | WNOHANG);

		if (found == tid)
			return WIFSTOPPED(*status) ? 1 : -1;
		if (found < 0 && errno != EINTR)
			return -1;
		if (ml_clock_ns() > deadline_ns)
			return 0;
		if (i > SPINS)
			nanosleep(&nap, NULL);
	}
}

/* Keeps only the threads of earlier rounds that have not reached their stop yet. */
static void forget_settled(struct ml_ptrace_threads *threads)
{
	size_t n = 0;

	for (size_t i = 0; i < threads->n; i++)
		if (!threads->threads[i].is_stopped && !threads->threads[i].is_gone && threads->threads[i].is_late)
			threads->threads[n++] = threads->threads[i];
	threads->n = n;
}

/* A stop for a signal that came first: the thread goes on with it, and into the stop that was asked for behind it. */
static void take_stop(struct ml_ptrace_thread *thread, int status)
{
	if (status >> 16 == PTRACE_EVENT_STOP) {
		thread->is_stopped = true;
		thread->is_group_stopped = WSTOPSIG(status) != SIGTRAP;
	} else {
		ptrace(PTRACE_CONT, thread->tid, NULL, (void *)(long)(status >> 16 ? 0 : WSTOPSIG(status)));
	}
}

/* One that waits for a processor stops; one that sleeps where nothing wakes it (vfork(), a disk) is not waited for. */
static void await_stop(const struct ml_ptrace_threads *threads, struct ml_ptrace_thread *thread, ml_u64 deadline_ns)
{
	int status, found;

	while (!thread->is_stopped && !thread->is_gone) {
		found = ml_ptrace_wait(thread->tid, ml_clock_ns() + (thread->is_late ? 0 : LEAST_PATIENCE_NS), &status);
		thread->is_late = found == 0 && (state_of(threads, thread->tid) == 'D' || ml_clock_ns() > deadline_ns);
		thread->is_gone = found < 0;
		if (found > 0)
			take_stop(thread, status);
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
	/* once all are stopped, none of them makes another */
	for (int round = 0;; round++) {
		int n_new = seize_new(threads);

		if (n_new < 0)
			return -1;
		if (!n_new && n_awaited == threads->n)
			break;
		errno = ETIMEDOUT;
		if (round == ROUNDS_MAX)
			return -1;
		for (; n_awaited < threads->n; n_awaited++)
			await_stop(threads, &threads->threads[n_awaited], deadline_ns);
	}
	for (size_t i = 0; i < threads->n; i++) {
		is_any_left |= !threads->threads[i].is_gone;
		is_group_stopped |= threads->threads[i].is_group_stopped;
	}
	errno = is_any_left ? EBUSY : ESRCH;
	return is_any_left && !is_group_stopped ? 0 : -1;
}

/* That a program sees nothing of the stop, as far as that can be had. */
static void repeat_wait(pid_t tid)
{
	ml_ptrace_registers registers;

	if (ml_ptrace_read_set(tid, NT_PRSTATUS, &registers, sizeof(registers)) == (ssize_t)sizeof(registers) &&
	    ml_ptrace_repeat_wait(&registers) && !ml_ptrace_has_pending_signal(tid))
		ml_ptrace_write_set(tid, NT_PRSTATUS, &registers, sizeof(registers));
}

void ml_ptrace_let_go(struct ml_ptrace_threads *threads, struct ml_ptrace_thread *thread)
{
	ml_u64 stood_ns;

	if (!thread->is_stopped)
		return;
	repeat_wait(thread->tid);
	if (ptrace(PTRACE_DETACH, thread->tid, NULL, NULL))
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

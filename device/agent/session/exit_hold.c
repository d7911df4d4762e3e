// SPDX-License-Identifier: Apache-2.0
#include "agent/session/exit_hold.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/process/proc_file.h"
#include "agent/ptrace/state.h"
#include "agent/process/thread_states.h"

#define WAKE SIGUSR1 /* ends the tracing thread's wait */
#define WAKE_EVERY_US 1000
/* Other threads that still run at the end of the first one soon exit or wait in execve(). */
#define RUNNING_TRIES 50
#define RUNNING_US 100
#define ENDING_TRIES 500 /* of a millisecond each: freeing much memory takes a while */
/* The terminal's interrupt reaches the command as well as the host. */
#define SIGNAL_NS 200000000ull   /* for a handler to end the command */
#define SIGNALS_NS 5000000000ull /* at most, without a handler */
#define ARRIVES_NS 100000000ull /* killpg(2) signals one process after another, and on a busy machine each waits for its turn */

enum phase { FOLLOWS, HOLDS, IS_OVER };

/* ---- the tracing thread --------------------------------------------------------------------------------- */

/* The system call of the thread (/proc/PID/task/TID/syscall). -1: none, or unknown. */
static long system_call_of(pid_t pid, pid_t tid)
{
	char name[32], text[256], *end;

	snprintf(name, sizeof(name), "task/%d/syscall", tid);
	for (int i = 0; i < RUNNING_TRIES; i++) {
		long number;

		if (ml_proc_read(pid, name, text, sizeof(text)) < 0)
			return -1;
		number = strtol(text, &end, 10);
		if (end != text) /* else the file says "running" */
			return number;
		usleep(RUNNING_US);
	}
	return -1;
}

/* The threads of a process except one. */
struct others {
	pid_t pid, but;
};

static bool begins_program(void *context, int tid)
{
	const struct others *others = context;
	long number = tid == others->but ? -1 : system_call_of(others->pid, tid);

	return number == SYS_execve || number == SYS_execveat;
}

static bool goes_on(void *context, int tid)
{
	const struct others *others = context;

	return tid != others->but && !ml_thread_has_ended((ml_u32)others->pid, (ml_u32)tid) &&
	       system_call_of(others->pid, tid) != SYS_exit;
}

static bool is_seized(pid_t tid)
{
	return !ptrace(PTRACE_SEIZE, tid, NULL, PTRACE_O_TRACEEXIT | PTRACE_O_TRACECLONE);
}

/* A thread that ends meanwhile cannot be seized, and need not be. */
static bool seize(void *context, int tid)
{
	if (tid != ((struct others *)context)->but)
		is_seized(tid);
	return false;
}

/* The first thread alone is traced while it lives; the others are if they outlive it. */
static bool is_held_at_exit(struct ml_exit_hold *hold, pid_t tid)
{
	struct others others = { hold->pid, tid };
	int successor = ml_proc_find(hold->pid, "task", begins_program, &others); /* execve(2) ends all other threads first */

	if (successor > 0) { /* cannot be seized before execve() is over, which waits for this thread */
		ptrace(PTRACE_CONT, tid, NULL, NULL);
		if (!is_seized(successor))
			is_seized(hold->pid); /* its tid after execve() */
		return false;
	}
	if (system_call_of(hold->pid, tid) == SYS_exit && ml_proc_find(hold->pid, "task", goes_on, &others) > 0) {
		if (tid == hold->pid)
			ml_proc_find(hold->pid, "task", seize, &others);
		ptrace(PTRACE_CONT, tid, NULL, NULL);
		return false;
	}
	hold->stop = ml_stopped_thread_read(hold->pid, tid);
	return true;
}

/* Continues as without a tracer: signals are delivered, a stop of job control stays one. */
static void go_on(struct ml_exit_hold *hold, pid_t tid, int status)
{
	int event = status >> 16, signal = WSTOPSIG(status);

	if (!event) {
		atomic_store(&hold->signal, signal);
		atomic_store(&hold->signal_ns, ml_clock_ns());
	}

	if (event == PTRACE_EVENT_STOP && signal != SIGTRAP)
		ptrace(PTRACE_LISTEN, tid, NULL, NULL);
	else
		ptrace(PTRACE_CONT, tid, NULL, (void *)(long)(event ? 0 : signal));
}

/* Returns true at the end of the command, false if there is nothing to trace any more. */
static bool follow(struct ml_exit_hold *hold)
{
	while (!atomic_load(&hold->is_over)) {
		int status;
		pid_t tid = waitpid(-1, &status, __WALL | __WNOTHREAD);

		if (tid < 0 && errno == EINTR)
			continue;
		if (tid < 0)
			return false;
		if (!WIFSTOPPED(status)) {
			if (tid == hold->pid) {
				hold->wait_status = status;
				hold->is_reaped = true;
				return false;
			}
		} else if (status >> 16 != PTRACE_EVENT_EXIT) {
			go_on(hold, tid, status);
		} else if (is_held_at_exit(hold, tid)) {
			return true;
		}
	}
	return false;
}

/*
 * Takes real-time priority if allowed. The thread sleeps except for microseconds per event, and a released thread may end before it
 * is traced again (execve() in another thread, which cannot be seized before).
 */
static void run_first(void)
{
	const struct sched_param first = { .sched_priority = 1 };

	pthread_setschedparam(pthread_self(), SCHED_FIFO, &first);
}

/* The kernel detaches all tracees when this thread ends (exit_ptrace()). */
static void *trace(void *context)
{
	struct ml_exit_hold *hold = context;

	run_first();
	hold->error = ptrace(PTRACE_SEIZE, hold->pid, NULL, PTRACE_O_TRACEEXIT) ? errno : 0;
	sem_post(&hold->started);
	if (!hold->error && follow(hold)) {
		atomic_store(&hold->phase, HOLDS);
		while (sem_wait(&hold->go) && errno == EINTR)
			continue;
	}
	atomic_store(&hold->phase, IS_OVER);
	return NULL;
}

/* ---- the agent's main thread ------------------------------------------------------------------------------ */

static void wake(int signal)
{
	(void)signal;
}

static int start_thread(struct ml_exit_hold *hold)
{
	const struct sigaction action = { .sa_handler = wake };
	sigset_t others, before;
	int error;

	sigaction(WAKE, &action, NULL);
	sigfillset(&others); /* all other signals are for the main thread, whose poll() they end */
	sigdelset(&others, WAKE);
	pthread_sigmask(SIG_SETMASK, &others, &before);
	error = pthread_create(&hold->thread, NULL, trace, hold);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

static void join(struct ml_exit_hold *hold)
{
	pthread_join(hold->thread, NULL);
	sem_destroy(&hold->started);
	sem_destroy(&hold->go);
	hold->is_started = false;
}

void ml_exit_hold_start(struct ml_exit_hold *hold, pid_t pid)
{
	int error;

	hold->pid = pid;
	sem_init(&hold->started, 0, 0);
	sem_init(&hold->go, 0, 0);
	error = start_thread(hold);
	if (!error) {
		hold->is_started = true;
		while (sem_wait(&hold->started) && errno == EINTR)
			continue;
		error = hold->error;
		if (error)
			join(hold);
	}
	if (error)
		ml_blocks_log(
			"could not hold the command at its end: %s (run as root, outside of a sandbox that forbids ptrace)",
			strerror(error));
}

int ml_exit_hold_report(struct ml_exit_hold *hold)
{
	if (!hold->is_started || hold->is_reported || atomic_load(&hold->phase) != HOLDS)
		return 0;
	hold->is_reported = true;
	return ml_blocks_write(ML_BLOCK_EXIT_STOP, &hold->stop, sizeof(hold->stop));
}

static void detach(struct ml_exit_hold *hold)
{
	if (!hold->is_started)
		return;
	atomic_store(&hold->is_over, true);
	while (atomic_load(&hold->phase) == FOLLOWS) { /* a signal may arrive just before waitpid() */
		pthread_kill(hold->thread, WAKE);
		usleep(WAKE_EVERY_US);
	}
	if (atomic_load(&hold->phase) == IS_OVER)
		join(hold);
}

/* Whether the default action ends the process: signal(7). */
static bool ends_processes(int signal)
{
	static const int harmless[] = { SIGCHLD, SIGCONT, SIGURG, SIGWINCH, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU };

	for (size_t i = 0; i < sizeof(harmless) / sizeof(*harmless); i++)
		if (signal == harmless[i])
			return false;
	return signal > 0;
}

static bool has_taken_signal(struct ml_exit_hold *hold, const char *status)
{
	int signal = atomic_load(&hold->signal);
	ml_u64 others = ml_proc_field(status, "SigCgt:\t", 16) | ml_proc_field(status, "SigIgn:\t", 16);
	bool is_end = ends_processes(signal) && !(others >> (signal - 1) & 1);

	return ml_clock_ns() - atomic_load(&hold->signal_ns) < (is_end ? SIGNALS_NS : SIGNAL_NS);
}

/*
 * Whether a signal is pending, or was just delivered, that may end the command. A signal that is not pending at the first read stops its
 * thread at the second, or was delivered by go_on() before it. In another order it could be missed.
 */
static bool is_taking_signal(struct ml_exit_hold *hold)
{
	char status[4096];

	ml_proc_read(hold->pid, "status", status, sizeof(status));
	if ((ml_proc_field(status, "SigPnd:\t", 16) | ml_proc_field(status, "ShdPnd:\t", 16)) &
	    ~ml_proc_field(status, "SigBlk:\t", 16))
		return true;
	ml_proc_read(hold->pid, "status", status, sizeof(status));
	return strstr(status, "\nState:\tt") || has_taken_signal(hold, status);
}

static void wait_for_signals(struct ml_exit_hold *hold)
{
	ml_u64 begin_ns = ml_clock_ns(), waited_ns = 0;

	while (hold->is_started && atomic_load(&hold->phase) == FOLLOWS && waited_ns < SIGNALS_NS &&
	       (is_taking_signal(hold) || waited_ns < ARRIVES_NS)) {
		usleep(WAKE_EVERY_US);
		waited_ns = ml_clock_ns() - begin_ns;
	}
}

/* A host that stops the session right after must receive the exit status. */
static void wait_for_end(pid_t pid)
{
	for (int i = 0; i < ENDING_TRIES; i++) {
		siginfo_t found = { 0 };

		if (waitid(P_PID, (id_t)pid, &found, WEXITED | WNOHANG | WNOWAIT) || found.si_pid)
			return;
		usleep(WAKE_EVERY_US);
	}
}

void ml_exit_hold_resume(struct ml_exit_hold *hold)
{
	detach(hold);
	if (!hold->is_started)
		return;
	sem_post(&hold->go);
	join(hold);
	wait_for_end(hold->pid);
}

void ml_exit_hold_control(struct ml_exit_hold *hold, enum ml_control control)
{
	if (control == ML_CONTROL_DETACH) {
		wait_for_signals(hold);
		detach(hold);
	}
	if (control == ML_CONTROL_RESUME)
		ml_exit_hold_resume(hold);
}

bool ml_exit_hold_has_ended(struct ml_exit_hold *hold, pid_t pid, int *wait_status)
{
	if (hold->is_started && atomic_load(&hold->phase) != IS_OVER)
		return false;
	if (hold->is_started)
		join(hold);
	if (!hold->is_reaped)
		return waitpid(pid, wait_status, WNOHANG) == pid;
	*wait_status = hold->wait_status;
	return true;
}

// SPDX-License-Identifier: Apache-2.0
#include "agent/process/thread_states.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "agent/process/proc_file.h"

/* include/linux/sched.h */
#define PF_EXITING 0x4u
#define PF_SIGNALED 0x400u
#define SIGKILL_IS_PENDING (1ul << 8)

struct thread_state { /* proc_pid_stat(5), fields 3, 9, 20, 31 and 39 */
	char letter;
	unsigned flags;
	int n_threads;
	unsigned long pending_signals;
	ml_u32 processor;
};

/* name: "stat", or "task/7/stat". 0, or -1 with errno: ENOENT or ESRCH for an unknown thread. */
static int read_state(ml_u32 pid, const char *name, struct thread_state *ret)
{
	const char *format = ") %c %*s %*s %*s %*s %*s %u %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d %*s %*s %*s %*s "
			     "%*s %*s %*s %*s %*s %*s %lu %*s %*s %*s %*s %*s %*s %*s %u";
	char text[1024];
	const char *behind;

	if (ml_proc_read((pid_t)pid, name, text, sizeof(text)) < 0)
		return -1;
	behind = strrchr(text, ')'); /* the name may hold anything */
	errno = EPROTO;
	return behind && sscanf(behind, format, &ret->letter, &ret->flags, &ret->n_threads, &ret->pending_signals,
				&ret->processor) == 5 ?
		       0 :
		       -1;
}

static int read_thread(ml_u32 pid, ml_u32 tid, struct thread_state *ret)
{
	char name[32];

	snprintf(name, sizeof(name), "task/%u/stat", tid);
	return read_state(pid, name, ret);
}

static bool is_zombie(const struct thread_state *thread)
{
	return thread->letter == 'Z' || thread->letter == 'X';
}

static bool has_no_thread(ml_u32 pid)
{
	struct thread_state first;

	if (read_state(pid, "stat", &first))
		return errno == ENOENT || errno == ESRCH;
	return is_zombie(&first) && first.n_threads <= 1;
}

bool ml_process_has_ended(ml_u32 pid, int pidfd)
{
	struct pollfd end = { .fd = pidfd, .events = POLLIN };

	return pidfd >= 0 ? poll(&end, 1, 0) == 1 : has_no_thread(pid);
}

/* The last field of proc_pid_stat(5), exit_code, of a zombie. To a reader that may not trace it the kernel shows 0. */
static int zombies_status(ml_u32 pid)
{
	struct thread_state first;
	char text[1024], *last;
	int status;

	if (read_state(pid, "stat", &first) || !is_zombie(&first) || ml_proc_read((pid_t)pid, "stat", text, sizeof(text)) < 0)
		return -1;
	last = strrchr(text, ' ');
	status = last ? atoi(last) : -1;
	return status || !geteuid() ? status : -1;
}

/* include/uapi/linux/pidfd.h: since Linux 6.13, exit_code since 6.15 and from the moment when the parent has waited. */
struct pidfd_info {
	ml_u64 mask, cgroup;
	ml_u32 ids[11];
	ml_s32 exit_code;
};
#define PIDFD_INFO_EXIT (1u << 3)
#define PIDFD_GET_INFO _IOWR(0xff, 11, struct pidfd_info)

int ml_process_exit_status(ml_u32 pid, int pidfd)
{
	int status = zombies_status(pid);
	struct pidfd_info info = { .mask = PIDFD_INFO_EXIT };

	if (status < 0 && pidfd >= 0 && !ioctl(pidfd, PIDFD_GET_INFO, &info) && info.mask & PIDFD_INFO_EXIT)
		return info.exit_code;
	return status;
}

/* exit_group() kills all threads, including the calling one. */
static bool goes_on(const struct thread_state *thread)
{
	return !is_zombie(thread) && !(thread->flags & (PF_EXITING | PF_SIGNALED)) &&
	       !(thread->pending_signals & SIGKILL_IS_PENDING);
}

bool ml_process_is_ending(ml_u32 pid)
{
	struct thread_state first;

	return read_state(pid, "stat", &first) || !goes_on(&first);
}

static bool is_other(void *context, int tid)
{
	ml_u32 pid = *(ml_u32 *)context;
	struct thread_state thread;

	return (ml_u32)tid != pid && !read_thread(pid, (ml_u32)tid, &thread) && goes_on(&thread);
}

bool ml_process_has_other_threads(ml_u32 pid)
{
	return ml_proc_find((pid_t)pid, "task", is_other, &pid) >= 0;
}

char ml_thread_letter(ml_u32 pid, ml_u32 tid)
{
	struct thread_state state;

	return read_thread(pid, tid, &state) ? 'X' : state.letter;
}

ml_u32 ml_thread_processor(ml_u32 pid, ml_u32 tid)
{
	struct thread_state state;

	return read_thread(pid, tid, &state) ? ~0u : state.processor;
}

bool ml_thread_has_ended(ml_u32 pid, ml_u32 tid)
{
	char letter = ml_thread_letter(pid, tid);

	return letter == 'Z' || letter == 'X';
}

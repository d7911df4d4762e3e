// SPDX-License-Identifier: Apache-2.0
#include "agent/process/patient_read.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/proc_file.h"
#include "agent/protocol/blocks.h"

#define PIECE_BYTES (128u << 10)
#define PATIENCE_MS \
	2000 /* halved at each reader that is left behind: many such processes hold the agent up for four seconds in all */
#define SILENT_MAX 256

struct request {
	ml_u64 address;
	ml_u32 pid, bytes;
};

static struct {
	pid_t pid, of_pid; /* its own, and of the process that it reads for: a fork of that has no reader yet */
	int connection; /* with pid only */
	ml_u8 *piece;   /* shared with it */
	int patience_ms;
	ml_u32 silent[SILENT_MAX]; /* processes whose memory did not come */
	ml_u32 n_silent;
} reader = { .patience_ms = PATIENCE_MS };

/* The reader. It holds no probe and no pipe of the agent's open, and no library call is made in it. */
_Noreturn static void serve(int connection)
{
	struct request request;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(connection, 0);
	if (syscall(SYS_close_range, 1u, ~0u, 0u)) /* Linux 5.9 */
		for (int fd = 1; fd < 1024; fd++)
			close(fd);
	while (recv(0, &request, sizeof(request), 0) == (ssize_t)sizeof(request)) {
		struct iovec here = { reader.piece, request.bytes }, there = { (void *)(size_t)request.address, request.bytes };
		ssize_t n = process_vm_readv((pid_t)request.pid, &here, 1, &there, 1, 0);

		n = n < 0 ? -errno : n;
		if (send(0, &n, sizeof(n), MSG_NOSIGNAL) < 0)
			break;
	}
	_exit(0);
}

/* A child without an exit signal: who waits for others does not meet it (wait(2), __WCLONE). */
static bool is_running(void)
{
	int ends[2];

	if (reader.pid > 0 && reader.of_pid == getpid())
		return true;
	if (reader.of_pid != getpid()) {
		reader.piece = NULL;
		reader.of_pid = getpid();
	}
	if (!reader.piece) {
		reader.piece = mmap(NULL, PIECE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (reader.piece == MAP_FAILED)
			reader.piece = NULL;
	}
	if (!reader.piece || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return false;
	reader.pid = (pid_t)syscall(SYS_clone, 0l, 0l, 0l, 0l, 0l);
	if (!reader.pid)
		serve(ends[1]);
	close(ends[1]);
	reader.connection = ends[0];
	if (reader.pid < 0)
		close(ends[0]);
	return reader.pid > 0;
}

/* What it would write late goes to memory that is no longer ours. */
static void leave_behind(void)
{
	kill(reader.pid, SIGKILL);
	waitpid(reader.pid, NULL, WNOHANG | __WALL);
	close(reader.connection);
	munmap(reader.piece, PIECE_BYTES);
	reader.piece = NULL;
	reader.pid = 0;
	reader.patience_ms = reader.patience_ms > 1 ? reader.patience_ms / 2 : 1;
}

static bool is_silent(ml_u32 pid)
{
	for (ml_u32 i = 0; i < reader.n_silent && i < SILENT_MAX; i++)
		if (reader.silent[i] == pid)
			return true;
	return false;
}

static void report(ml_u32 pid)
{
	char name[16] = "";

	reader.silent[reader.n_silent++ % SILENT_MAX] = pid;
	ml_process_name(pid, name);
	ml_blocks_gap(
		ML_GAP_RECORD,
		"stacks of process %u (%.15s) may be cut: its memory did not come (a file system in user space serves it)", pid,
		name);
}

/* Bytes that were read; negative, with errno. */
static ssize_t read_piece(ml_u32 pid, ml_u64 address, size_t bytes)
{
	struct request request = { address, pid, (ml_u32)bytes };
	struct pollfd answer = { .fd = reader.connection, .events = POLLIN };
	ssize_t n = -1;
	int ready;

	if (send(reader.connection, &request, sizeof(request), MSG_NOSIGNAL) != (ssize_t)sizeof(request))
		return -1;
	do
		ready = poll(&answer, 1, reader.patience_ms);
	while (ready < 0 && errno == EINTR);
	if (ready > 0 && recv(reader.connection, &n, sizeof(n), 0) == (ssize_t)sizeof(n)) {
		errno = n < 0 ? (int)-n : 0;
		return n;
	}
	leave_behind();
	if (!ready)
		report(pid);
	errno = ETIMEDOUT;
	return -1;
}

int ml_patient_read(ml_u32 pid, ml_u64 address, void *into, size_t bytes)
{
	ml_u8 *to = into;

	while (bytes) {
		size_t step = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;

		if (is_silent(pid) || !is_running() || read_piece(pid, address, step) != (ssize_t)step)
			return -1;
		memcpy(to, reader.piece, step);
		to += step;
		address += step;
		bytes -= step;
	}
	return 0;
}
